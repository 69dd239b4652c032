"""Images of other channels read by lightly-train, by torchgeo and here: shapes, types, and what becomes of the values.

Run: python -m benchmarks.bands_beside    (lightly-train and torchgeo have to be installed; one that is not is left out)
The files: twelve bands as a multi-band TIFF of uint16, four as a TIFF of uint16 (whose fourth the header calls
transparency, as most programs write it), and an array of twelve in .npy.
"""

import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import excb

SIDE, TOP = 64, 10_000
Read = Callable[[Path], Any]


def write_files(folder: Path) -> dict[str, tuple[Path, np.ndarray]]:
    """Every file in a folder of its own below a class, and the values that it holds."""
    import tifffile

    values = np.random.default_rng(0).integers(0, TOP + 1, (SIDE, SIDE, 12)).astype(np.uint16)
    values[0, 0] = TOP
    names = {"12-band TIFF": "twelve.tif", "four bands, uint16, TIFF": "four.tif", ".npy": "twelve.npy"}
    written = {}
    for number, (kind, name) in enumerate(names.items()):
        file = folder / f"set{number}" / "class" / name
        file.parent.mkdir(parents=True)
        held = values[..., :4] if name.startswith("four") else values
        if file.suffix == ".npy":
            np.save(file, held)
        elif held.shape[-1] == 4:
            tifffile.imwrite(file, held, photometric="rgb", extrasamples=["unassalpha"])
        else:
            tifffile.imwrite(file, held, photometric="minisblack", planarconfig="contig")
        written[kind] = file, held
    return written


def here(file: Path) -> Any:
    """As sets are opened: the range is measured; four channels, which may be transparency, are declared."""
    from excb.images.pixels import Pixels
    from excb.images.scanning import scan_folder
    from excb.images.survey import surveyed, with_pixels

    found = scan_folder(file.parent)
    declared = Pixels.declared(f"0..{TOP}", 4) if file.stem == "four" else None
    return np.asarray(with_pixels(found, surveyed(found, declared).pixels).open(0))


def lightly_train(file: Path) -> Any:
    """With its channels and values unchanged."""
    os.environ["LIGHTLY_TRAIN_IMAGE_MODE"] = "UNCHANGED"
    helpers: Any = importlib.import_module("lightly_train._data.file_helpers")
    return helpers.open_image_numpy(file, mode=helpers.ImageMode.UNCHANGED)


def torchgeo(file: Path) -> Any:
    """Its set of classification with its own loader."""
    datasets: Any = importlib.import_module("torchgeo.datasets")
    return datasets.NonGeoClassificationDataset(str(file.parents[1]), is_valid_file=lambda _: True)[0]["image"]


def described(read: Read, file: Path, held: np.ndarray) -> str:
    """Shape, type, and largest value of what was read of a file whose largest is `TOP`; or the error."""
    try:
        found = np.asarray(read(file))
    except Exception as error:  # noqa: BLE001 - whatever another program raises is the finding
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return (
        f"{list(found.shape)} {found.dtype}, {held.max():,} became {found.max():,.6g}, {len(np.unique(found)):,} values"
    )


def main() -> None:
    """Print what each program makes of each file."""
    readers: dict[str, Read] = {"excb": here}
    others: tuple[Read, ...] = (lightly_train, torchgeo)
    for read in others:
        if importlib.util.find_spec(read.__name__):
            readers[f"{read.__name__} {importlib.import_module(read.__name__).__version__}"] = read
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for kind, (file, held) in write_files(Path(folder)).items():
            print(f"{kind}: {list(held.shape)} {held.dtype}, {len(np.unique(held)):,} values")
            for name, read in readers.items():
                print(f"  {name}: {described(read, file, held).replace(folder, '')}")
    print(f"excb {excb.__version__}")


if __name__ == "__main__":
    main()
