"""Images in tar shards, local or over fsspec, as a set with a fixed order."""

import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from excb.console import plural
from excb.errors import UserError
from excb.images.decoding import BrokenImageError, open_image
from excb.images.formats.known import EXTENSIONS, kind_of_extension
from excb.images.formats.plugins import Extra
from excb.images.image_set import fingerprint_of
from excb.images.pixels import EIGHT_BIT, ClippedImages, Pixels, notice_of
from excb.images.tars.index import ShardIndex, index_of
from excb.images.tars.places import find_shards
from excb.ledger import NOTHING, Ledger, LedgerEntry
from excb.remote import byte_ranges

MOST_CLASSES = 10_000_000  # numbers above are names
Note = Callable[[str], None]


class Paths(Sequence[str]):
    """SHARD/MEMBER of every image, built on request: a list of so many strings would grow in every worker process.

    Args:
        shards: names of the S shards.
        counts: images of every shard, int64 [S].
        names: of the members, UTF-8, a zero byte after each.
    """

    def __init__(self, shards: Sequence[str], counts: np.ndarray, names: bytes) -> None:
        self._shards, self._names, self._last = tuple(shards), names, counts.cumsum()
        self._ends = np.flatnonzero(np.frombuffer(names, np.uint8) == 0)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, item: int) -> str: ...
    @overload
    def __getitem__(self, item: slice) -> list[str]: ...
    def __getitem__(self, item: int | slice) -> str | list[str]:
        """One image's path, or those of a slice."""
        if isinstance(item, slice):
            return [self[index] for index in range(*item.indices(len(self)))]
        index = range(len(self))[item]
        start = int(self._ends[index - 1]) + 1 if index else 0
        member = self._names[start : int(self._ends[index])].decode(errors="surrogateescape")
        return f"{self._shards[self.shard(index)]}/{member}"

    def __iter__(self) -> Iterator[str]:
        members = iter(self._names.decode(errors="surrogateescape").split("\0"))
        for shard, count in zip(self._shards, np.diff(self._last, prepend=0).tolist(), strict=True):
            for member in itertools.islice(members, count):
                yield f"{shard}/{member}"

    def shard(self, index: int) -> int:
        """The number of the shard that holds an image."""
        return int(np.searchsorted(self._last, index, side="right"))


class _Member(io.BytesIO):
    """An image's bytes, which Pillow's messages name by the image's path."""

    def __init__(self, content: bytes, path: str) -> None:
        super().__init__(content)
        self._path = path

    def __repr__(self) -> str:
        return repr(self._path)


@dataclass(frozen=True)
class ShardImages:
    """Images in tars, shard after shard, each in the tar's order."""

    root: str  # what the user named
    places: tuple[str, ...]  # the shards' files or URLs
    index: ShardIndex
    labels: np.ndarray | None = None  # class index of every image, int64 [N]
    classes: tuple[str, ...] | None = None  # class names
    pixels: Pixels = EIGHT_BIT  # how stored values become channels
    ledger: Ledger = field(default=NOTHING, compare=False)  # what else the shards hold
    clipped: ClippedImages | None = field(default=None, compare=False, repr=False)  # see `ImageSet`
    _reader: byte_ranges.RangeReader = field(default_factory=byte_ranges.RangeReader, repr=False)

    def __len__(self) -> int:
        return len(self.index.offsets)

    @cached_property
    def paths(self) -> Paths:
        """SHARD/MEMBER of every image."""
        names = [place.partition("?")[0].rpartition("/")[2] for place in self.places]
        unique = len(set(names)) == len(names)
        return Paths(names if unique else self.places, self.index.counts, self.index.names)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the paths and labels."""
        return fingerprint_of(self.paths, self.labels)

    def here(self) -> "ShardImages":
        """The set as this process sees it, if rank 0 opened it on another machine with copies of the shards.

        Raises:
            UserError: a shard is missing here, or has another size.
        """
        if any(map(byte_ranges.is_remote, self.places)):
            return self
        stamps = byte_ranges.stamps(list(self.places))
        for place, stamp, indexed in zip(self.places, stamps, self.index.stamps, strict=True):
            if stamp.split()[0] != indexed.split()[0]:
                raise UserError(f"{place} has another size here than on rank 0: copy the shards again")
        return replace(self, index=replace(self.index, stamps=tuple(stamps)))

    def stamp(self, index: int) -> str:
        """See `Images.stamp`."""
        shard = self.paths.shard(index)
        return f"{self.index.offsets[index]} {self.index.sizes[index]} {self.index.stamps[shard]}"

    def source(self, index: int) -> io.BytesIO:
        """One image's bytes: see `CodedImages.source`."""
        shard = self.paths.shard(index)
        place, stamp = self.places[shard], self.index.stamps[shard]
        try:
            content = self._reader.read(place, stamp, int(self.index.offsets[index]), int(self.index.sizes[index]))
        except UserError as error:  # a package is missing on this machine
            raise BrokenImageError(str(error)) from None
        except byte_ranges.failures() as error:
            raise BrokenImageError(f"{type(error).__name__}: {byte_ranges.reason(error)}") from None
        return _Member(content, self.paths[index])

    def open(self, index: int) -> Any:
        """See `Images.open`."""
        return open_image(self.source(index), self.pixels, notice_of(self, index))


def open_shards(text: str, note: Note = lambda _line: None) -> ShardImages:
    """The images in tar shards.

    Labels come from label files beside the images (`excb.images.tars.table.read_table`) if every image has one, else
    from the first-level folders inside the tars if every image is in one and there are at least two. Classes that are
    numbers keep them: class 7 is index 7.

    Args:
        text: a tar, a folder of tars, or a pattern of tars with `*` or `{000..146}`, as a path or an fsspec URL.
        note: called with messages about what takes time and what is skipped.

    Raises:
        UserError: there are no such shards, or one cannot be used.
    """
    places = find_shards(text)
    index = index_of(places, note)
    if not len(index.offsets):
        size = plural(len(places), "shard")
        raise UserError(f"no image in {text} ({size}): it needs files ending in {' '.join(EXTENSIONS)}")
    skipped = sum(map(Counter, index.skipped), Counter[str]())
    ledger = Ledger(tuple(_entry(kind, count) for kind, count in sorted(skipped.items())))
    if 0 < (bare := int((index.labels < 0).sum())) < len(index.labels):
        note(f"{text}: no label for {bare:,} of {plural(len(index.labels), 'image')}: label files are not used")
    return ShardImages(text, tuple(places), index, *_classes(index), ledger=ledger)


def _entry(reason: str, count: int) -> LedgerEntry:
    """Members that were skipped; where an extra opens such images, its line is the advice."""
    kind = kind_of_extension(reason) if reason.startswith(".") else None
    return LedgerEntry(reason, count, advice=kind.advice if isinstance(kind, Extra) else "")


def _classes(index: ShardIndex) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    if len(index.label_names) > 1 and index.labels.min() >= 0:
        names = index.label_names
        if all(name.isascii() and name.isdecimal() for name in names) and max(map(len, names)) < len(str(MOST_CLASSES)):
            numbers = np.array([int(name) for name in names])
            return numbers[index.labels], tuple(map(str, range(numbers.max() + 1)))
        return index.labels, names
    folders = [name.partition("/")[::2] for name in index.names.decode(errors="surrogateescape").split("\0")[:-1]]
    classes = tuple(sorted({folder for folder, _ in folders}))
    if len(classes) < 2 or any(not below for _, below in folders):
        return None, None
    number = {name: place for place, name in enumerate(classes)}
    return np.array([number[folder] for folder, _ in folders]), classes
