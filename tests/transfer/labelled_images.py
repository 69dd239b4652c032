"""Small labelled image folders for the tests of downstream evaluation, and their features by another road."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from excb import Backbone
from excb.images.image_set import Images, ImageSet
from excb.networks.preprocessing import Preprocessing

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")
MODES = ("RGB", "L", "RGBA", "P", "1", "LA", "CMYK")  # in turn: every evaluation meets them all


def write_folder(folder: Path, *, each: int, classes: Sequence[str] = CLASSES, seed: int = 0, side: int = 40) -> Path:
    """Write pictures that differ a little by class, of every mode, under one sub-folder per class."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:side, : side + 6]
    for name in classes:
        label = CLASSES.index(name) if name in CLASSES else len(CLASSES)
        target = folder / name
        target.mkdir(parents=True)
        wave = 15 * np.sin((rows * np.cos(label) + columns * np.sin(label)) / 3)[..., None]
        for number in range(each):
            pixels = 128 + wave + random.normal(0, 60, (side, side + 6, 3))
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(MODES[(label + number) % len(MODES)])
            image.save(target / (f"{number}.tif" if image.mode == "CMYK" else f"{number}.png"))
    return folder


def features_by_loop(
    backbone: Backbone, folder: Path, transform: Preprocessing | None = None
) -> tuple[np.ndarray, list[str]]:
    """Features [N, D] in float64, image by image in sorted order, and the name of each one's class."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    rows, prepare = [], transform or backbone.transform
    for file in files:
        with Image.open(file) as image, torch.no_grad():
            rows.append(backbone(prepare(image.convert("RGB"))[None])[0].double().numpy())
    return np.stack(rows), [file.relative_to(folder).parts[0] for file in files]


def assert_features(found: np.ndarray, expected: np.ndarray) -> None:
    """Features agree but for rounding, in proportion to the largest: processors add in other orders."""
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())


def knn_by_loop(
    bank: np.ndarray, labels: list[str], queries: np.ndarray, targets: list[str], *, k: int, temperature: float
) -> tuple[float, float]:
    """DINO's weighted vote, one query at a time: top-1 and top-5 accuracy in percent."""
    unit = bank / np.linalg.norm(bank, axis=1, keepdims=True)
    names = sorted(set(labels))
    first = fifth = 0
    for query, target in zip(queries, targets, strict=True):
        cosines = unit @ (query / np.linalg.norm(query))
        nearest = sorted(range(len(bank)), key=lambda row: (-cosines[row], row))[:k]
        scores: dict[str, float] = {}  # of classes with a vote
        for row in nearest:
            scores[labels[row]] = scores.get(labels[row], 0.0) + float(np.exp(cosines[row] / temperature))
        ranked = sorted(scores, key=lambda name: (-scores[name], names.index(name)))
        first += ranked[0] == target
        fifth += target in ranked[:5]
    return 100 * first / len(queries), 100 * fifth / len(queries)


def changed(images: Images, **values: Any) -> ImageSet:
    """A set of files with other values."""
    assert isinstance(images, ImageSet)
    return replace(images, **values)
