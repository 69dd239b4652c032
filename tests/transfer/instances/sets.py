"""Tiny sets with ground truth, in every layout, of pictures that a random network tells apart."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

QUERY_BOX = (4, 3, 44, 33)  # in pixels


def picture(seed: int, *, noise: float = 0.0, width: int = 48, height: int = 36) -> Image.Image:
    """Coloured waves; equal seeds give like pictures, which noise makes differ."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    down, across, shift = random.uniform(size=(3, 3)) * [[0.5], [0.5], [6]] + [[0.05], [0.05], [0]]
    waves = np.sin(rows[..., None] * down + columns[..., None] * across + shift)
    pixels = 128 + 100 * waves + np.random.default_rng(1000 + seed).normal(0, max(noise, 1e-9), (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def save(image: Image.Image, file: Path, quality: int = 95) -> None:
    """Write an image, and the folders that it needs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image.save(file, quality=quality)


def write_revisited(root: Path, entries: Sequence[dict[str, Any]], *, gallery: int = 12, protocol: int = 2) -> Path:
    """ROxford's layout: as many queries as entries, whose picture is that of gallery image 0, 1, ..."""
    for index in range(gallery):
        save(picture(index % 5, noise=10 * index), root / "jpg" / f"hall_{index:06}.jpg")
    for query in range(len(entries)):
        save(picture(query, noise=5), root / "jpg" / f"gate_{query:06}.jpg")
    truth = {
        "imlist": [f"hall_{index:06}" for index in range(gallery)],
        "qimlist": [f"gate_{query:06}" for query in range(len(entries))],
        "gnd": list(entries),
    }
    (root / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(truth, protocol=protocol))
    return root


def write_copydays(root: Path, *, originals: int = 5) -> Path:
    """Copydays' layout: three-digit prefix of photograph and a copy of each kind; two strong ones of the first."""
    for index in range(originals):
        image = picture(index)
        save(image, root / "original" / f"20{index:02}00.jpg")
        save(image, root / "jpeg" / "10" / f"20{index:02}00.jpg", quality=10)
        save(image.crop((6, 6, 40, 30)), root / "crops" / "30" / f"20{index:02}00.jpg")
    for number in (1, 2):
        save(picture(0, noise=80), root / "strong" / f"20000{number}.jpg")
    return root


def write_pairs(root: Path, *, references: int = 12, queries: int = 9, unmatched: int = 3) -> Path:
    """DISC21's layout; the last queries have no reference."""
    for index in range(references):
        save(picture(index), root / "references" / f"R{index:03}.jpg")
    lines = ["query_id,reference_id"]
    for index in range(queries):
        known = index < queries - unmatched
        save(picture(index if known else 50 + index, noise=30 * index), root / "queries" / f"Q{index:03}.jpg")
        lines.append(f"Q{index:03}," + (f"R{index:03}" if known else ""))
    (root / "ground_truth.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root
