"""Parquet shards of pictures for tests, as the Hugging Face Hub keeps them."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def stored_picture(number: int, side: int = 36) -> bytes:
    """A coded picture, another one for every number."""
    random = np.random.default_rng(number)
    pixels = random.integers(0, 256, (6, 6, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC).save(stream, "png")
    return stream.getvalue()


def write_parquet(folder: Path, sizes: Sequence[int], *, changed: dict[int, bytes | None] | None = None) -> Path:
    """Shards of so many pictures each; the number of a picture counts through all of them."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    features = datasets.Features({"label": datasets.ClassLabel(names=["a", "b"]), "picture": datasets.Image()})
    (folder / "data").mkdir(parents=True)
    first = 0
    for shard, size in enumerate(sizes):
        contents = [(changed or {}).get(number, stored_picture(number)) for number in range(first, first + size)]
        rows = {"label": [0] * size, "picture": [content and {"bytes": content, "path": None} for content in contents]}
        name = f"train-{shard:05}-of-{len(sizes):05}.parquet"
        datasets.Dataset.from_dict(rows, features=features).to_parquet(
            batch_size=4, path_or_buf=str(folder / "data" / name)
        )
        first += size
    return folder
