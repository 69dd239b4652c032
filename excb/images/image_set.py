"""Sets of images: folders of any depth with or without labels, or lists of paths."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from excb.images.decoding import Source, open_image
from excb.images.pixels import EIGHT_BIT, Pixels
from excb.ledger import NOTHING, Ledger

AnyImages = TypeVar("AnyImages")


class Images(Protocol):
    """Labelled images with a fixed order, wherever they are kept, such as an `ImageSet`."""

    @property
    def root(self) -> Path | str:
        """The folder, or the name of the source."""

    @property
    def paths(self) -> Sequence[str]:
        """A name for every image, the same each time."""

    @property
    def labels(self) -> np.ndarray | None:
        """Class index of every image, int64 [N]."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names."""

    @property
    def fingerprint(self) -> str:
        """A hash that is equal for equal sets. Together with all stamps it differs where an image or label differs."""

    def __len__(self) -> int:
        """Number of images."""

    def stamp(self, index: int) -> str:
        """A text that changes when a stored image may have changed; empty where the fingerprint changes with it."""

    def open(self, index: int) -> Any:
        """One image upright, in 8 bits: RGB, or uint8 [H, W, C] for other than three channels (see `open_image`).

        Raises:
            BrokenImageError: it cannot be read.
        """


class CodedImages(Images, Protocol):
    """Images whose stored bytes can be read, so that pretraining chooses how to decode them."""

    def source(self, index: int) -> Source:
        """One image as it is stored, a stream for this caller only. Raises BrokenImageError if it cannot be read."""


@runtime_checkable
class ScannedImages(Protocol):
    """Images that a search of folders found; another search also finds what was added there."""

    @property
    def scanned_folders(self) -> Sequence[Path]:
        """The folders."""


def ledger_of(images: Any) -> Ledger:
    """The ledger of the search for a set's images; that of the whole set for some of its images."""
    while not isinstance(ledger := getattr(images, "ledger", None), Ledger):
        if (images := getattr(images, "images", None)) is None:
            return NOTHING
    return ledger


def with_ledger(images: AnyImages, ledger: Ledger) -> AnyImages:
    """The same set with another ledger, where it can hold one."""
    if is_dataclass(images) and any(each.name == "ledger" for each in fields(images)):
        return replace(images, ledger=ledger)  # type: ignore[type-var]
    return images


def fingerprint_of(paths: Sequence[str], labels: np.ndarray | None) -> str:
    """A hash of paths and labels."""
    digest = hashlib.sha256("\n".join(paths).encode("utf-8", "surrogateescape"))
    if labels is not None:
        digest.update(np.ascontiguousarray(labels, dtype="<i8").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class ImageSet:
    """Images with a fixed order: `root / paths[i]` is sample i."""

    root: Path
    paths: Sequence[str]  # POSIX paths below root, sorted
    labels: np.ndarray | None = None  # class index of every sample, int64 [N]
    classes: tuple[str, ...] | None = None  # class names
    scanned: bool = False  # whether these are all images below root, as another scan would find them
    ledger: Ledger = field(default=NOTHING, compare=False)  # what the scan left out
    pixels: Pixels = EIGHT_BIT  # how stored values become channels

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def scanned_folders(self) -> Sequence[Path]:
        """See `ScannedImages`."""
        return [self.root] if self.scanned else []

    def file(self, index: int) -> Path:
        """The file of one sample."""
        return self.root / self.paths[index]

    source = file

    def stamp(self, index: int) -> str:
        """The file's size and modification time; "none" if it is missing, which opening the image reports."""
        try:
            status = self.file(index).stat()
        except (OSError, ValueError):  # ValueError: a zero byte in the name
            return "none"
        return f"{status.st_size} {status.st_mtime_ns}"

    def open(self, index: int) -> Any:
        """See `Images.open`."""
        return open_image(self.file(index), self.pixels)

    @property
    def fingerprint(self) -> str:
        """A hash of the list of files and their labels, whatever their root."""
        return fingerprint_of(self.paths, self.labels)
