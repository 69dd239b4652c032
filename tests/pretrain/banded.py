"""A small set of images of twelve bands, made of the small runs' pictures by filters, as values of 0..10,000."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from excb.images.image_set import ImageSet
from excb.images.pixels import Pixels
from excb.images.scanning import scan_folder
from tests.pretrain.small_runs import write_images

BANDS, TOP = 12, 10_000
PIXELS = Pixels(BANDS, (0.0,), (float(TOP),), "declared")


def band_images(folder: Path, *, classes: int = 3, each: int = 8) -> ImageSet:
    """Write arrays [H, W, 12] uint16 and return them as a set: a band is a mixture of colours of its own brightness."""
    pictures = scan_folder(write_images(folder / "pictures", classes=classes, each=each))
    filters = np.random.default_rng(1).dirichlet(np.ones(3), BANDS).T
    for index, name in enumerate(pictures.paths):
        colours = np.asarray(Image.open(pictures.file(index))) / 255
        file = (folder / "bands" / name).with_suffix(".npy")
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, (TOP * (colours @ filters) ** np.linspace(0.5, 2, BANDS)).astype(np.uint16))
    paths = [str(Path(name).with_suffix(".npy")) for name in pictures.paths]
    return replace(pictures, root=folder / "bands", paths=paths, pixels=PIXELS, scanned=False)
