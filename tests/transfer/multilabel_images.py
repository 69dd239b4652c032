"""Small sets of images with several labels each, in the layouts that users have them."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("blue", "green", "red")  # in the order of the alphabet


def write_image(file: Path, present: set[str], random: np.random.Generator) -> None:
    """A picture whose channels are bright where it is of their class."""
    file.parent.mkdir(parents=True, exist_ok=True)
    level = [170 if name in present else 60 for name in ("red", "green", "blue")]
    pixels = random.normal(level, 45, (32, 32, 3)).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(file)


def draw(images: int, seed: int) -> list[set[str]]:
    """Sets of labels, some of them empty."""
    random = np.random.default_rng(seed)
    return [{name for name in CLASSES if random.random() < 0.4} for _ in range(images)]


def write_lists(folder: Path, *, train: int = 30, test: int = 18, suffix: str = "csv") -> Path:
    """Folders with a list beside them."""
    for number, (part, images) in enumerate((("train", train), ("test", test))):
        random, labels = np.random.default_rng(number), draw(images, number)
        for index, own in enumerate(labels):
            write_image(folder / part / f"{index:03}.png", own, random)
        named = {f"{index:03}.png": sorted(own) for index, own in enumerate(labels)}
        text = (
            json.dumps(named) if suffix == "json" else "\n".join(",".join([name, *own]) for name, own in named.items())
        )
        (folder / f"{part}.{suffix}").write_text(text, encoding="utf-8")
    return folder


def write_voc(root: Path) -> Path:
    """VOC 2007 as torchvision lays it out, of three classes: image 3 of each part has a difficult `red` only."""
    base = root / "VOCdevkit" / "VOC2007"
    lists = base / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    for number, (part, images) in enumerate((("trainval", 20), ("test", 12))):
        random, labels = np.random.default_rng(number), draw(images, number)
        names = [f"{part}{index:04}" for index in range(images)]
        for name, own in zip(names, labels, strict=True):
            write_image(base / "JPEGImages" / f"{name}.jpg", own, random)
        for label in CLASSES:
            values = ["1" if label in own else "-1" for own in labels]
            values[3] = "0" if label == "red" else values[3]
            lines = [f"{name} {value:>2}" for name, value in zip(names, values, strict=True)]
            (lists / f"{label}_{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (lists / f"{part}.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    return root
