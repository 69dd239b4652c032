"""Sets of images: folders of any depth with or without labels, or lists of paths."""

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from excb.files.foreign import read_bytes
from excb.images.decoding import Source, open_image
from excb.images.formats.plugins import is_known_by_name
from excb.images.formats.video import frame_of
from excb.images.pixels import EIGHT_BIT, ClippedImages, Pixels, notice_of, pixels_of
from excb.ledger import NAMED, NOTHING, Ledger, LedgerEntry

AnyImages = TypeVar("AnyImages")
Value = TypeVar("Value")
MOST_HELD = 2**27  # bytes of the files of a set whose contents are held
CLIPPED = "images with values outside the range"  # the ledger's reason


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
class FiledImages(CodedImages, Protocol):
    """Images that are files, each with a name of its own."""

    def file(self, index: int) -> Path:
        """The file of one image."""


class HeldContents:
    """Contents of some files of a set, by their numbers, at most `MOST_HELD` bytes in all.

    Processes that are forked have them, too. Those that are started anew, to which they would be copied, have none and
    read the files themselves.
    """

    def __init__(self) -> None:
        self._contents: dict[int, tuple[str, bytes]] = {}
        self._bytes = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[type["HeldContents"], tuple[()]]:
        return HeldContents, ()

    def __contains__(self, number: int) -> bool:
        """Whether there is a content of this file, which may have changed since."""
        return number in self._contents

    def fits(self, size: int) -> bool:
        """Whether there is room for so many bytes."""
        return self._bytes + size <= MOST_HELD

    def keep(self, number: int, stamp: str, content: bytes) -> None:
        """Hold the content of a file, where there is room for it, and the stamp that it had before it was read."""
        with self._lock:
            if number not in self._contents and self.fits(len(content)):
                self._contents[number] = stamp, content
                self._bytes += len(content)

    def get(self, number: int, stamp: str) -> bytes | None:
        """The content; None where it is not held, or the file has another stamp by now."""
        held = self._contents.get(number)
        return held[1] if held is not None and held[0] == stamp else None


class HoldingImages(FiledImages, Protocol):
    """Files of which some contents are held in memory."""

    @property
    def held(self) -> HeldContents:
        """The contents, by the images' numbers."""


@runtime_checkable
class ScannedImages(Protocol):
    """Images that a search of folders found; another search also finds what was added there."""

    @property
    def scanned_folders(self) -> Sequence[Path]:
        """The folders."""


@runtime_checkable
class DoubtedImages(Protocol):
    """Images whose ledger is made of several parts."""

    def with_doubts(self, found: Ledger) -> "DoubtedImages":
        """The same set with more in its ledger."""


def ledger_of(images: Any) -> Ledger:
    """The ledger of the search for a set's images; that of the whole set for some of its images."""
    return ledger if (ledger := _within(images, "ledger", Ledger)) is not None else NOTHING


def clipped_of(images: Any) -> ClippedImages | None:
    """The marks of images with values outside the range, of the whole set; None where all have 8 bits."""
    return _within(images, "clipped", ClippedImages)


def _within(images: Any, name: str, kind: type[Value]) -> Value | None:
    """An attribute of a set, or else of the set that it is a part of."""
    while images is not None:
        if isinstance(value := getattr(images, name, None), kind):
            return value
        images = getattr(images, "images", None)
    return None


def share_clipped(images: Any) -> None:
    """Let every rank know which images others found to have values outside the range; all ranks call this."""
    from excb.distributed.collectives import gather_objects  # here: finding images needs no torch

    if (clipped := clipped_of(images)) is not None:
        for indices in gather_objects(clipped.indices):
            clipped.add(indices)


def clipped_ledger(images: Any, of: str = "") -> Ledger:
    """The doubt about images with values outside their set's range, of those that were read so far."""
    if (clipped := clipped_of(images)) is None:
        return NOTHING
    whole, marked = images, clipped.indices
    while not isinstance(getattr(whole, "clipped", None), ClippedImages):
        whole = whole.images
    if not marked:
        return NOTHING
    names = tuple(whole.paths[index] for index in marked[:NAMED]) if whole.paths else ()  # a stream's have none
    advice = f"clipped to {pixels_of(whole).range}"
    return Ledger((LedgerEntry(CLIPPED, len(marked), names, advice, left_out=False, of=of),))


def with_doubts(images: AnyImages, found: Ledger) -> AnyImages:
    """The same set with more in its ledger; of a part, in that of the whole set."""
    changed: Any = images
    if isinstance(images, DoubtedImages):
        return images.with_doubts(found)  # type: ignore[return-value]
    names = {each.name for each in fields(changed)} if found and is_dataclass(changed) else set[str]()
    if "ledger" in names:
        changed = replace(changed, ledger=changed.ledger + found)
    elif "images" in names:
        changed = replace(changed, images=with_doubts(changed.images, found))
    return changed  # type: ignore[no-any-return]


def held_source(images: HoldingImages, index: int) -> Source:
    """The content of a file where it is held and has not changed since, else the file."""
    file = images.file(index)
    content = images.held.get(index, stamp_of(file)) if index in images.held else None
    return file if content is None else io.BytesIO(content)


def read_once(images: CodedImages, index: int) -> Source:
    """One image as it is stored, for a first look; its content is held for the passes over the set that follow.

    A file stays a file where it cannot be read, which its use reports, where there is no room for it, and where its
    name says how it is opened.
    """
    source, held = images.source(index), getattr(images, "held", None)
    # Not by the protocol, whose check computes every property, such as the fingerprint of all images, for each one.
    if not isinstance(held, HeldContents) or not isinstance(source, Path) or is_known_by_name(source):
        return source
    try:
        status = os.stat(source)  # noqa: PTH116 - likewise
        if not held.fits(status.st_size):
            return source
        content = read_bytes(source, MOST_HELD)
    except (OSError, ValueError):
        return source
    held.keep(index, _stamp(status), content)
    return io.BytesIO(content)


def stamp_of(*files: Path | str) -> str:
    """Sizes and modification times of files; "none" if one is missing, which opening the image reports."""
    try:
        known = [_status(file) for file in files]
    except (OSError, ValueError):  # ValueError: a zero byte in the name
        return "none"
    return " ".join(map(_stamp, known))


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_size} {status.st_mtime_ns}"


def _status(file: Path | str) -> os.stat_result:
    try:
        return os.stat(file)  # noqa: PTH116 - a million times, of text
    except FileNotFoundError:
        if (frame := frame_of(file)) is None:
            raise
        return frame[0].stat()


def sizes_hash(images: Images) -> str:
    """SHA-256 of the sizes of image files, which are equal for a copy of them; of nothing for images without files."""
    sizes = " ".join(images.stamp(index).partition(" ")[0] for index in range(len(images)))
    return hashlib.sha256(sizes.encode()).hexdigest()


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
    clipped: ClippedImages | None = field(default=None, compare=False, repr=False)  # where images of more bits are read
    held: HeldContents = field(default_factory=HeldContents, compare=False, repr=False)  # see `read_once`

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def scanned_folders(self) -> Sequence[Path]:
        """See `ScannedImages`."""
        return [self.root] if self.scanned else []

    def file(self, index: int) -> Path:
        """The file of one sample."""
        return self.root / self.paths[index]

    def source(self, index: int) -> Source:
        """See `CodedImages.source`."""
        return held_source(self, index)

    def stamp(self, index: int) -> str:
        """See `stamp_of`."""
        return stamp_of(os.path.join(self.root, self.paths[index]))  # noqa: PTH118 - likewise

    def open(self, index: int) -> Any:
        """See `Images.open`."""
        return open_image(self.source(index), self.pixels, notice_of(self, index))

    @property
    def fingerprint(self) -> str:
        """A hash of the list of files and their labels, whatever their root."""
        return fingerprint_of(self.paths, self.labels)
