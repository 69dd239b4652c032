"""Data sets of the Hugging Face Hub: their image column, and a label column by name or the finest of them."""

import functools
import hashlib
import importlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError, nearest_name, require
from excb.images.decoding import Source, open_image
from excb.images.pixels import EIGHT_BIT, ClippedImages, Pixels, notice_of
from excb.ledger import NOTHING, Ledger

from .named_sets import Note, NumberedImages, SetSource, Split, one_line, rank0_then_all

_HELD_OUT: tuple[str, ...] = ("test", "validation", "valid", "val")


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
    ledger: Ledger = field(default=NOTHING, compare=False)  # doubts about the set
    clipped: ClippedImages | None = field(default=None, compare=False, repr=False)  # see `ImageSet`

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
        return open_image(self.source(index), self.pixels, notice_of(self, index))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the data set's own fingerprint, the split and the labels."""
        digest = hashlib.sha256(f"{self.origin}\n{self.split}\n{self.column}\n".encode())
        digest.update(self.labels.astype("<i8").tobytes())
        return digest.hexdigest()


def open_hub(text: str, split: Split, _root: Path | None, note: Note) -> HubImages:
    """A split with labels; if the test split has none, as in some benchmarks, the validation split replaces it.

    Args:
        text: ID[@CONFIG][,label=COLUMN][,image=COLUMN]. A column of labels that is named may hold numbers or texts; its
            classes are the values of the train and the test split.
        split: which images.
        note: called with messages for the user.

    Raises:
        UserError: there is no such data set, split or column, or it cannot be loaded.
    """
    place, *options = text.split(",")
    named = _named_columns(text, options)
    name, _, config = place.partition("@")
    require(bool(name), "hf: needs a data set's name, as in hf:ethz/food101")
    try:
        library = importlib.import_module("datasets")
    except ImportError:
        raise UserError(f"hf:{text} needs the package `datasets`: pip install datasets") from None
    errors = (OSError, ValueError, RuntimeError, library.exceptions.DatasetsError)

    def call(function: str, **more: str) -> Any:
        try:
            return getattr(library, function)(name, config or None, **more)
        except errors as error:
            raise UserError(f"cannot load hf:{text}: {one_line(error)}") from None

    available = run_on_rank0(lambda: list(call("get_dataset_split_names")))

    def load(part: str) -> Any:
        return rank0_then_all(functools.partial(call, "load_dataset", split=part))

    held_out = [part for part in _HELD_OUT if part in available]
    train = [part for part in ("train",) if part in available]
    source = f"hf:{text}"
    for part in train if split == "train" else held_out:
        data = load(part)
        image, label = _columns(source, data, library, named, note if split == "train" else _quiet)
        if isinstance(data.features[label], library.ClassLabel):
            classes, values = tuple(data.features[label].names), data[label][:]
            numbers = [-1 if value is None else value for value in values]
        else:
            values = data[label][:]
            others = [load(other)[label][:] for other in (*train, *held_out[:1]) if other != part]
            classes = _values(source, label, [values, *others])
            index = {name: number for number, name in enumerate(classes)}
            numbers = [-1 if value is None else index[str(value)] for value in values]
        rows = data.select_columns([image]).cast_column(image, library.Image(decode=False))
        labels = np.array(numbers, dtype=np.int64)
        images = HubImages(Path(source), part, rows, image, labels, classes, str(data._fingerprint))
        if images.labels.min() >= 0:
            return images
        note(f"the split '{part}' of hf:{text} has no labels")
    raise UserError(f"hf:{text} has no labelled split '{split}', only {', '.join(available)}: choose another data set")


def _quiet(_line: str) -> None:
    """Print nothing: the train split has said it."""


def _named_columns(text: str, options: Sequence[str]) -> dict[str, str]:
    """The columns that options name: label, image."""
    pairs = dict(option.partition("=")[::2] for option in options)
    if unknown := [name for name, value in pairs.items() if name not in ("label", "image") or not value]:
        raise UserError(f"hf:{text} has no option {unknown[0]}: write hf:ID,label=COLUMN or hf:ID,image=COLUMN")
    return pairs


def _columns(source: str, data: Any, library: Any, named: Mapping[str, str], note: Note) -> tuple[str, str]:
    """The columns of images and of labels: those named, else by their types the first and the finest (CIFAR-100)."""
    images, labels = (
        [str(key) for key, feature in data.features.items() if isinstance(feature, kind)]
        for kind in (library.Image, library.ClassLabel)
    )
    for column in named.values():
        if column not in data.features:
            near = nearest_name(column, data.features)
            raise UserError(f"{source} has no column {column}{near}; there are {', '.join(data.features)}")
    image = named.get("image") or next(iter(images), "")
    if image not in images or not len(data):
        raise UserError(f"{source} has no images: choose a data set with a column of type Image")
    if "label" in named:
        return image, named["label"]
    if not labels:
        rest = ", ".join(name for name in data.features if name not in images)
        raise UserError(
            f"{source} has no classes, no column of type ClassLabel: name a column with ,label=COLUMN ({rest})"
        )
    label: str = max(labels, key=lambda key: len(data.features[key].names))
    if len(labels) > 1:
        note(f"labels of {source}: the column {label}, of {', '.join(labels)}: name another with ,label=COLUMN")
    return image, label


def _values(source: str, label: str, columns: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """The classes of columns of numbers or texts, in their order."""
    known = [value for column in columns for value in column if value is not None]
    if not all(isinstance(value, int | str) for value in known):
        raise UserError(f"the column {label} of {source} holds neither whole numbers nor texts: name another")
    ordered = sorted(set(known), key=lambda value: (isinstance(value, str), value))
    return tuple(map(str, ordered))


SOURCE = SetSource("hf", "hf:ID", open_hub)
