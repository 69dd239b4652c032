"""Small sets with a class per pixel for the tests of dense evaluation: coloured rectangles on noise."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ground", "red", "green")
_COLOURS = np.array([(100, 100, 100), (230, 40, 40), (40, 220, 60)])


def picture(random: np.random.Generator, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """An image [H, W, 3] uint8 and its mask [H, W] uint8: a red and a green rectangle, and a void border of 255."""
    mask = np.zeros((height, width), np.uint8)
    for label in (1, 2):
        top, left = (int(random.integers(0, side // 2)) for side in (height, width))
        mask[top : top + height // 2, left : left + width // 2] = label
    pixels = _COLOURS[mask] + random.normal(0, 15, (height, width, 3))
    mask[:, 0] = 255
    return pixels.clip(0, 255).astype(np.uint8), mask


def write_set(root: Path, *, train: int = 6, test: int = 4, seed: int = 0, sizes: tuple[int, ...] = (48, 60)) -> Path:
    """Write a set in the layout `folders`; sides of the images are of `sizes`, in turn."""
    random = np.random.default_rng(seed)
    for split, number in (("train", train), ("test", test)):
        for kind in ("images", "masks"):
            (root / split / kind / "deep").mkdir(parents=True)
        for index in range(number):
            pixels, mask = picture(random, sizes[index % len(sizes)], sizes[(index // 2) % len(sizes)])
            name = f"deep/{index}" if index % 3 == 0 else str(index)
            Image.fromarray(pixels).save(root / split / "images" / f"{name}.png")
            Image.fromarray(mask).save(root / split / "masks" / f"{name}.png")
    (root / "classes.txt").write_text("\n".join(CLASSES) + "\n", encoding="utf-8")
    return root
