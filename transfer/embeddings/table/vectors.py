"""Vectors of images with their paths and what made them, read from the disk as they are needed."""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excb.console import plural
from excb.errors import require
from excb.ledger import NOTHING, Ledger
from excb.neighbours.unit_rows import Rows

AT_ONCE = 8192  # rows that are read, written or indexed together
BLOCK = 2**18  # bytes that are copied and hashed together


@dataclass(frozen=True)
class ArrayRows:
    """The rows of an array [N, D], as `Rows` are read."""

    array: np.ndarray

    @property
    def width(self) -> int:
        """D."""
        return int(self.array.shape[1])

    def __len__(self) -> int:
        return len(self.array)

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows [stop - start, D]."""
        return torch.from_numpy(np.array(self.array[start:stop], dtype=np.float32))


class Crc32:
    """CRC-32 of bytes that are added, which files of earlier versions hold."""

    def __init__(self) -> None:
        self._sum = 0

    def update(self, data: memoryview) -> None:
        """Add bytes."""
        self._sum = zlib.crc32(data, self._sum)

    def intdigest(self) -> int:
        """The checksum of all so far."""
        return self._sum


@dataclass(frozen=True)
class CheckedRows(ArrayRows):
    """Rows of a file whose checksums are compared when they are first read, while they are copied.

    Attributes:
        checksums: of `each` rows.
        each: rows that have one checksum.
        algorithm: makes an object that computes one, such as `xxhash.xxh3_64` or `Crc32`.
        source: the file, for messages.
    """

    checksums: Sequence[int]
    each: int
    algorithm: Callable[[], Any]
    source: str
    intact: set[int] = field(default_factory=set, compare=False)

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows [stop - start, D]. Raises UserError if they are not those that were written."""
        stop = min(stop, len(self))
        copied = np.empty((max(0, stop - start), self.width), np.float32)
        for part in self._parts(start, stop):
            first, last = part * self.each, min((part + 1) * self.each, len(self))
            if part not in self.intact and start <= first and last <= stop:
                self._compare(part, copied[first - start : last - start])
                continue
            self.check(first, last)
            first, last = max(first, start), min(last, stop)
            copied[first - start : last - start] = self.array[first:last]
        return torch.from_numpy(copied)

    def check(self, start: int, stop: int) -> None:
        """Raise UserError if the checksum of rows is another."""
        for part in self._parts(start, stop):
            if part not in self.intact:
                self._compare(part)

    def _parts(self, start: int, stop: int) -> range:
        return range(start // self.each, -(-min(stop, len(self)) // self.each))

    def _compare(self, part: int, copied: np.ndarray | None = None) -> None:
        """Compare the checksum of a part, of which a copy may be made: what the cache holds is hashed at once."""
        checksum, rows = self.algorithm(), self.array[part * self.each : (part + 1) * self.each]
        step = max(1, BLOCK // (4 * self.width or 1))
        for first in range(0, len(rows), step):
            block = rows[first : first + step]
            if copied is not None:
                copied[first : first + step] = block
                block = copied[first : first + step]
            checksum.update(np.ascontiguousarray(block).data)
        same = checksum.intdigest() == self.checksums[part]
        require(same, f"{self.source} is damaged: its vectors have another checksum; embed the images again")
        self.intact.add(part)


def in_place(rows: Rows) -> Tensor | Rows:
    """The rows of a float32 array as a tensor of the same memory; others as they are."""
    if isinstance(rows, ArrayRows) and rows.array.dtype == np.float32 and rows.array.flags.writeable:
        if isinstance(rows, CheckedRows):
            rows.check(0, len(rows))
        return torch.from_numpy(rows.array)
    return rows


@dataclass(frozen=True)
class ChosenRows:
    """Some rows of others, by their ascending numbers."""

    all: Rows
    chosen: np.ndarray  # int64 [N]

    @property
    def width(self) -> int:
        """D."""
        return self.all.width

    def __len__(self) -> int:
        return len(self.chosen)

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows [stop - start, D]."""
        numbers = self.chosen[start : min(stop, len(self))]
        if not len(numbers):
            return torch.empty(0, self.width)
        first = int(numbers[0])
        return self.all.rows(first, int(numbers[-1]) + 1)[torch.from_numpy(numbers - first)]


def checked_labels(labels: Sequence[str | None], count: int) -> list[str | None] | None:
    """Labels as a list, in which empty ones are None; None where all are.

    Raises:
        UserError: there are not so many, or one is something else.
    """
    given = list(labels)
    require(len(given) == count, f"{plural(len(given), 'label')} for {plural(count, 'image')}: pass one for each")
    if not {*map(type, given)} <= {str, type(None)}:  # of a million labels
        for each in given:
            require(each is None or isinstance(each, str), f"a label is a class name or None, not {each!r}")
    return [each or None for each in given] if any(given) else None


@dataclass(frozen=True, eq=False, repr=False)
class Vectors:
    """Vectors of images.

    Attributes:
        rows: the vectors, read from the disk as they are needed.
        paths: the images' names below `root`, row by row.
        root: the folder, or the name of the source.
        model: what made the vectors: "name", "source", "weights_sha256", "preprocessing" and more.
        unreadable: images that could not be read and have no row, and why.
        ledger: what else the search for images left out.
        labels: the class of each image, or None for one without; None where no image has one.
    """

    rows: Rows
    paths: Sequence[str]
    root: str
    model: Mapping[str, Any]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    ledger: Ledger = NOTHING
    labels: Sequence[str | None] | None = None

    def __post_init__(self) -> None:
        """Raise UserError unless there are as many labels as images, all of them text or None."""
        if self.labels is not None:
            object.__setattr__(self, "labels", checked_labels(self.labels, len(self)))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The row of each path."""
        return {path: number for number, path in enumerate(self.paths)}

    def parts(self) -> Iterator[np.ndarray]:
        """The vectors in order, some thousand rows [n, D] at a time."""
        for start in range(0, len(self), AT_ONCE):
            yield self.rows.rows(start, min(start + AT_ONCE, len(self))).numpy()

    def __len__(self) -> int:
        """N, the number of images."""
        return len(self.rows)

    def __repr__(self) -> str:
        missing = f", {len(self.unreadable)} unreadable" if self.unreadable else ""
        kind, size = type(self).__name__, f"{len(self):,} x {self.rows.width}"
        return f"{kind}({size} of {self.root} by {self.model.get('name')}{missing})"

    def describe(self) -> dict[str, Any]:
        """All but vectors and paths, for JSON."""
        return {
            "root": self.root,
            "images": len(self),
            "width": self.rows.width,
            "model": json.loads(json.dumps(dict(self.model))),
            "unreadable": dict(self.unreadable),
        } | ({"ledger": self.ledger.to_dict()} if self.ledger else {})
