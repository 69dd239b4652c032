"""Runs small enough for tests: a few dozen tiny pictures and the overrides that fit the quickstart recipe to them."""

from pathlib import Path

import numpy as np
from PIL import Image

OVERRIDES = (
    'model.options={"channels": [8, 8, 16, 16], "stem_width": 4}',
    "method.clusters=12",
    "method.hidden=16",
    "method.width=8",
    "views.global_size=32",
    "views.local_size=16",
    "views.eval_resize=32",
    "views.eval_crop=32",
    "optim.epochs=3",
    "optim.batch=8",
    "monitor.every_epochs=2",
    "monitor.k=3",
    "run.log_steps=1",
    "efficiency.workers=0",
    "efficiency.device=cpu",
)


def write_images(folder: Path, *, classes: int = 3, each: int = 9, side: int = 36) -> Path:
    """Write pictures that differ by class: stripes of a class's direction and colour, with noise."""
    random = np.random.default_rng(5)
    rows, columns = np.mgrid[:side, :side]
    for label in range(classes):
        target = folder / f"class{label}"
        target.mkdir(parents=True)
        wave = np.sin((rows * np.cos(label) + columns * np.sin(label)) / 3)[..., None]
        for number in range(each):
            colour = random.uniform(60, 120, 3) + 40 * (np.arange(3) == label)
            pixels = colour + 50 * wave + random.normal(0, 15, (side, side, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(target / f"{number}.png")
    return folder
