"""Data sets of the Hugging Face Hub: their image column and the finest of their label columns."""

import functools
import hashlib
import importlib
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError, require
from excb.images.decoding import Source, open_image
from excb.images.pixels import EIGHT_BIT, Pixels

from .named_sets import Note, NumberedImages, SetSource, Split, one_line, rank0_then_all


@dataclass(frozen=True)
class HubImages(NumberedImages):
    """Images of a Hugging Face data set."""

    root: Path  # name of the source
    split: str  # the split's name at the Hub; images are called "test/00000", "test/00001",
    rows: Any  # `datasets.Dataset` whose column `column` holds undecoded images
    column: str  # the images' column
    labels: np.ndarray  # class indices, int64 [N]
    classes: tuple[str, ...]  # class names
    origin: str  # the loaded data set's fingerprint
    pixels: Pixels = EIGHT_BIT  # how stored values become channels

    def source(self, index: int) -> Source:
        """One image as it is stored."""
        stored = self.rows[index][self.column] or {"bytes": b""}
        content = stored.get("bytes")
        return stored["path"] if content is None else io.BytesIO(content)

    def open(self, index: int) -> Any:
        """One image upright, in 8 bits: see `Images.open`.

        Raises:
            BrokenImageError: it cannot be read.
        """
        return open_image(self.source(index), self.pixels)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the data set's own fingerprint, the split and the labels."""
        digest = hashlib.sha256(f"{self.origin}\n{self.split}\n{self.column}\n".encode())
        digest.update(self.labels.astype("<i8").tobytes())
        return digest.hexdigest()


def open_hub(text: str, split: Split, _root: Path | None, note: Note) -> HubImages:
    """A split with labels; if the test split has none, as in some benchmarks, the validation split replaces it.

    Args:
        text: ID or ID@CONFIG.
        split: which images.
        note: called with messages for the user.

    Raises:
        UserError: there is no such data set or split, or it cannot be loaded.
    """
    name, _, config = text.partition("@")
    require(bool(name), "hf: needs a data set's name, as in hf:ethz/food101")
    try:
        library = importlib.import_module("datasets")
    except ImportError:
        raise UserError(f"hf:{text} needs the package `datasets`: pip install datasets") from None
    errors = (OSError, ValueError, RuntimeError, library.exceptions.DatasetsError)

    def call(function: str, **options: str) -> Any:
        try:
            return getattr(library, function)(name, config or None, **options)
        except errors as error:
            raise UserError(f"cannot load hf:{text}: {one_line(error)}") from None

    available = run_on_rank0(lambda: list(call("get_dataset_split_names")))
    candidates = ("train",) if split == "train" else ("test", "validation", "valid", "val")
    for part in (part for part in candidates if part in available):
        data = rank0_then_all(functools.partial(call, "load_dataset", split=part))
        images = _hub_images(f"hf:{text}", part, data, library)
        if images.labels.min() >= 0:
            return images
        note(f"the split '{part}' of hf:{text} has no labels")
    raise UserError(f"hf:{text} has no labelled split '{split}', only {', '.join(available)}: choose another data set")


def _hub_images(source: str, split: str, data: Any, library: Any) -> HubImages:
    """The image column and the finest of the label columns (CIFAR-100 has two), identified by their types."""
    columns = data.features.items()
    images = [key for key, feature in columns if isinstance(feature, library.Image)]
    labels = [key for key, feature in columns if isinstance(feature, library.ClassLabel)]
    require(bool(images) and len(data) > 0, f"{source} has no images: choose a data set with a column of type Image")
    require(bool(labels), f"{source} has no classes: choose a data set with a column of type ClassLabel")
    label = max(labels, key=lambda key: len(data.features[key].names))
    numbers = np.array([-1 if value is None else value for value in data[label][:]], dtype=np.int64)
    rows = data.select_columns([images[0]]).cast_column(images[0], library.Image(decode=False))
    names = tuple(data.features[label].names)
    return HubImages(Path(source), split, rows, images[0], numbers, names, str(data._fingerprint))


SOURCE = SetSource("hf", "hf:ID", open_hub)
