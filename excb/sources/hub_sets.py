"""Data sets of the Hugging Face Hub: their image column, and a label column by name or the finest of them."""

import functools
import hashlib
import importlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from excb.errors import UserError, nearest_name, one_line, require
from excb.images.decoding import Source, open_image
from excb.images.pixels import EIGHT_BIT, ClippedImages, Pixels, notice_of
from excb.ledger import NOTHING, Ledger
from excb.sources.source import Note, NumberedImages, SetSource, Split, rank0_then_all

_HELD_OUT: tuple[str, ...] = ("test", "validation", "valid", "val")


@dataclass(frozen=True)
class HubImages(NumberedImages):
    """Images of a Hugging Face data set."""

    root: Path  # name of the source
    split: str  # the split's name at the Hub; images are called "test/00000", "test/00001",
    rows: Any  # `datasets.Dataset` whose column `column` holds undecoded images
    column: str  # the images' column
    labels: np.ndarray | None  # class indices, int64 [N]
    classes: tuple[str, ...] | None  # class names
    origin: str  # the loaded data set's fingerprint
    pixels: Pixels = EIGHT_BIT  # how stored values become channels
    ledger: Ledger = field(default=NOTHING, compare=False)  # doubts about the set
    clipped: ClippedImages | None = field(default=None, compare=False, repr=False)  # see `ImageSet`

    def __len__(self) -> int:
        """Number of images."""
        return len(self.rows)

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
        if self.labels is not None:
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
    data = _HubSet.named(text)
    for part in data.parts(split):
        images = data.images(part, note if split == "train" else _quiet, labelled=True)
        if images is not None:
            return images
        note(f"the split '{part}' of hf:{text} has no labels")
    there = ", ".join(data.splits)
    raise UserError(f"hf:{text} has no labelled split '{split}', only {there}: choose another data set")


def training_hub(text: str, _root: Path | None, note: Note) -> HubImages:
    """The train split, with labels if it has a column of type ClassLabel or one is named.

    Args:
        text: as for `open_hub`.
        note: called with messages for the user.

    Raises:
        UserError: there is no such data set, no split "train", no column of images, or it cannot be loaded.
    """
    data = _HubSet.named(text)
    if not (parts := data.parts("train")):
        raise UserError(f"hf:{text} has no split 'train', only {', '.join(data.splits)}: choose another data set")
    found = data.images(parts[0], note, labelled=False)
    assert found is not None
    return found


@dataclass(frozen=True)
class _HubSet:
    """A data set of the Hub, of which a text names configuration and columns."""

    text: str
    library: Any  # the package `datasets`
    splits: Sequence[str]  # names of all
    columns: Mapping[str, str]  # of label and image, if named

    @classmethod
    def named(cls, text: str) -> "_HubSet":
        """The set that a text names. Raises UserError if there is none, or no package to read it."""
        from excb.distributed.collectives import run_on_rank0  # here: the table of sources needs no torch

        place, *options = text.split(",")
        named = _named_columns(text, options)
        name, at, configuration = place.partition("@")
        require(bool(name), "hf: needs a data set's name, as in hf:ethz/food101")
        require(bool(configuration) or not at, f"hf:{text} names no configuration after @: leave @ out")
        try:
            library = importlib.import_module("datasets")
        except ImportError:
            raise UserError(f"hf:{text} needs the package `datasets`: pip install datasets") from None
        found = cls(text, library, (), named)
        return replace(found, splits=run_on_rank0(lambda: list(found._call("get_dataset_split_names"))))

    def parts(self, split: Split) -> list[str]:
        """Names of the splits that may be its train or its test images, the best first."""
        return [name for name in (("train",) if split == "train" else _HELD_OUT) if name in self.splits]

    def images(self, part: str, note: Note, *, labelled: bool) -> HubImages | None:
        """A split. Where labels are missing it is None if they are wanted, and has none if they are not."""
        source, data = f"hf:{self.text}", self._load(part)
        image = _image_column(source, data, self.library, self.columns)
        label = _label_column(source, data, self.library, self.columns, note, required=labelled)
        known = None if label is None else self._labels(part, data, label)
        if known is None and labelled:
            return None
        labels, classes = known or (None, None)
        rows = data.select_columns([image]).cast_column(image, self.library.Image(decode=False))
        return HubImages(Path(source), part, rows, image, labels, classes, str(data._fingerprint))

    def _labels(self, part: str, data: Any, label: str) -> tuple[np.ndarray, tuple[str, ...]] | None:
        """Class indices, int64 [N], and class names of a column; None if some are missing."""
        values = data[label][:]
        if isinstance(data.features[label], self.library.ClassLabel):
            classes = tuple(data.features[label].names)
            numbers = [-1 if value is None else value for value in values]
        else:
            rest = [name for name in (*self.parts("train"), *self.parts("test")[:1]) if name != part]
            classes = _values(f"hf:{self.text}", label, [values, *(self._load(name)[label][:] for name in rest)])
            index = {name: number for number, name in enumerate(classes)}
            numbers = [-1 if value is None else index[str(value)] for value in values]
        labels = np.array(numbers, dtype=np.int64)
        return (labels, classes) if labels.min() >= 0 else None

    def _load(self, part: str) -> Any:
        return rank0_then_all(functools.partial(self._call, "load_dataset", split=part))

    def _call(self, function: str, **more: str) -> Any:
        name, _, config = self.text.partition(",")[0].partition("@")
        errors = (OSError, ValueError, RuntimeError, self.library.exceptions.DatasetsError)
        try:
            return getattr(self.library, function)(name, config or None, **more)
        except errors as error:
            raise UserError(f"cannot load hf:{self.text}: {one_line(error)}") from None


def _quiet(_line: str) -> None:
    """Print nothing: the train split has said it."""


def _named_columns(text: str, options: Sequence[str]) -> dict[str, str]:
    """The columns that options name: label, image."""
    pairs = dict(option.partition("=")[::2] for option in options)
    if unknown := [name for name, value in pairs.items() if name not in ("label", "image") or not value]:
        raise UserError(f"hf:{text} has no option {unknown[0]}: write hf:ID,label=COLUMN or hf:ID,image=COLUMN")
    return pairs


def _image_column(source: str, data: Any, library: Any, named: Mapping[str, str]) -> str:
    """The column of images: that named, else the first of its type; all columns named have to be there."""
    images = [str(key) for key, feature in data.features.items() if isinstance(feature, library.Image)]
    for column in named.values():
        if column not in data.features:
            near = nearest_name(column, data.features)
            raise UserError(f"{source} has no column {column}{near}; there are {', '.join(data.features)}")
    image = named.get("image") or next(iter(images), "")
    if image not in images or not len(data):
        raise UserError(f"{source} has no images: choose a data set with a column of type Image")
    return image


def _label_column(
    source: str, data: Any, library: Any, named: Mapping[str, str], note: Note, *, required: bool
) -> str | None:
    """The column of labels: that named, else of those of its type the finest (CIFAR-100); None if it may be missing."""
    if "label" in named:
        return named["label"]
    labels = [str(key) for key, feature in data.features.items() if isinstance(feature, library.ClassLabel)]
    if not labels:
        if not required:
            return None
        rest = ", ".join(name for name, feature in data.features.items() if not isinstance(feature, library.Image))
        raise UserError(
            f"{source} has no classes, no column of type ClassLabel: name a column with ,label=COLUMN ({rest})"
        )
    label: str = max(labels, key=lambda key: len(data.features[key].names))
    if len(labels) > 1:
        note(f"labels of {source}: the column {label}, of {', '.join(labels)}: name another with ,label=COLUMN")
    return label


def _values(source: str, label: str, columns: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """The classes of columns of numbers or texts, in their order."""
    known = [value for column in columns for value in column if value is not None]
    if not all(isinstance(value, int | str) for value in known):
        raise UserError(f"the column {label} of {source} holds neither whole numbers nor texts: name another")
    ordered = sorted(set(known), key=lambda value: (isinstance(value, str), value))
    return tuple(map(str, ordered))


SOURCE = SetSource("hf", "hf:ID", open_hub, training=training_hub)
