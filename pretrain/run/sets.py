"""Images to measure networks on, as files or tar shards: training images and labelled held-out images."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from excb.console import plural
from excb.images.image_set import CodedImages, Images, ImageSet, ledger_of
from excb.images.pixels import Pixels
from excb.images.scanning import scan_folder
from excb.images.shards import Note, ShardImages, open_shards
from excb.images.subset import Subset
from excb.images.survey import on_mapping, surveyed, with_pixels
from excb.images.tars.places import holds_shards, is_shards
from excb.ledger import NOTHING, Ledger, omission
from excb.remote import byte_ranges
from excb.sources.opening import open_images
from excb.sources.table import source_of

from .run_folder import facts_of_images

CONVERT = "convert them to 8 bits, or leave them out"
HELD_OUT = ("test", "val")  # the first of these beside `train` is the k-NN test set of a study


@dataclass(frozen=True)
class ImageSets:
    """Training images, and labelled held-out images if any."""

    train: CodedImages
    held_out: Images | None
    dropped: Ledger = NOTHING  # of the folder of held-out images

    @property
    def ledger(self) -> Ledger:
        """All that was left out of both, or is doubted."""
        return ledger_of(self.train).of("train") + (ledger_of(self.held_out) + self.dropped).of("the held-out images")

    @property
    def judged_on(self) -> str:
        """The images that k-NN accuracy is measured on."""
        if self.train.labels is None:
            return "no labels"
        return (
            f"{plural(len(self.held_out), 'held-out image')}"
            if self.held_out is not None
            else "training images, each left out"
        )

    def to_dict(self) -> dict[str, Any]:
        """The facts that a cell records about its images."""
        held_out = facts_of_images(self.held_out) if self.held_out is not None else None
        return {"train": facts_of_images(self.train), "held_out": held_out, "judged_on": self.judged_on}

    @property
    def digest(self) -> str:
        """Equal for equal images and labels."""
        held_out = self.held_out.fingerprint if self.held_out is not None else ""
        return hashlib.sha256(f"{self.train.fingerprint} {held_out}".encode()).hexdigest()


def find_sets(data: str | Path, note: Note = lambda _line: None, *, held_out: Sequence[str] = HELD_OUT) -> ImageSets:
    """The images of `data/train`, or `data`; labelled ones of another folder beside `train` are held out.

    Held-out images of classes without training images are dropped, which the ledger says: no neighbour could vote for
    them. `data` may be shards as `excb.images.shards.open_shards` takes them; `note` is called when these are indexed.
    Of torchvision:NAME and hf:ID the test images are held out.

    Args:
        data: the folder.
        note: called with messages.
        held_out: names of folders beside `train`, of which the first that exists is taken.

    Raises:
        UserError: there is no image.
    """
    text = os.fspath(data)
    train = open_images(text, note)
    if (named := source_of(text)) is not None:
        source, name = named
        labelled = train.labels is not None and "test" in held_out
        return ImageSets(train, source.open(name, "test", None, note) if labelled else None)
    if train.classes is None or os.fspath(train.root) != _part(text, "train"):
        return ImageSets(train, None)
    other = next((images for name in held_out if (images := _open(text, name, note)) is not None), None)
    if other is None or other.classes is None or other.labels is None:
        return ImageSets(train, None)
    number = {name: index for index, name in enumerate(train.classes)}
    labels = np.array([number.get(name, -1) for name in other.classes], np.int64)[other.labels]
    shared = np.flatnonzero(labels >= 0)
    strange = [other.paths[index] for index in np.flatnonzero(labels < 0).tolist()]
    dropped = omission("images of classes without training images", strange)
    if not len(shared):
        return ImageSets(train, None, dropped)
    if isinstance(other, ImageSet):
        paths = [other.paths[index] for index in shared.tolist()]
        known = replace(other, paths=paths, labels=labels[shared], classes=train.classes)
        return ImageSets(train, known, dropped)
    return ImageSets(train, Subset(replace(other, labels=labels, classes=train.classes), shared), dropped)


def with_one_mapping(sets: ImageSets, known: Pixels | None, note: Note) -> ImageSets:
    """Training and held-out images with one record of pixels: the known one, or that of the training images.

    Raises:
        UserError: no one mapping fits all images (`excb.images.survey.surveyed`).
    """
    survey = surveyed(sets.train, known)
    if line := survey.line():
        note(line)
    held_out, refusal = sets.held_out, f", and the training images have none: {CONVERT}"
    if held_out is not None:
        held_out = on_mapping(held_out, survey.pixels, note=note, refusal=refusal)
    return replace(sets, train=with_pixels(sets.train, survey.pixels), held_out=held_out)


def _part(data: str, name: str) -> str:
    return f"{data.rstrip('/')}/{name}" if byte_ranges.is_remote(data) else os.fspath(Path(data) / name)


def _open(data: str, name: str, note: Note) -> ImageSet | ShardImages | None:
    """The images of a folder beside `train`, if it exists."""
    part = _part(data, name)
    if byte_ranges.is_remote(data):
        return open_shards(part, note) if holds_shards(part) else None
    if not Path(part).is_dir():
        return None
    return open_shards(part, note) if is_shards(part) else scan_folder(part)
