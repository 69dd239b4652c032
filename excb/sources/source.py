"""The base of sources of named data sets: their declaration and numbered images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

from excb.images.image_set import CodedImages, Images
from excb.images.pixels import EIGHT_BIT

Split = Literal["train", "test"]
Note = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class SetSource:
    """A source of data sets that are named PREFIX:NAME."""

    prefix: str  # before the colon, in lower case
    form: str  # what a user writes, for messages
    # returns the labelled images of a data set (what follows the prefix) and a split, given the user's folder of data
    # sets, if any; raises UserError if it cannot be loaded
    open: Callable[[str, Split, Path | None, Note], Images]
    # the full name of the data set that a word means, or None; it must not use the network
    find: Callable[[str], str | None] = lambda _word: None
    # returns the training images, labelled or not, given the same without the split; None if nothing trains on them
    training: Callable[[str, Path | None, Note], CodedImages] | None = None


def numbered(split: str, count: int) -> list[str]:
    """Names that sort in the order of their numbers."""
    digits = max(5, len(str(count - 1)))
    return [f"{split}/{number:0{digits}}" for number in range(count)]


class NumberedImages:
    """Images without file names: they are numbered, and the set's fingerprint covers their contents."""

    split: str
    pixels = EIGHT_BIT

    def __len__(self) -> int:
        """Number of images."""
        raise NotImplementedError

    def stamp(self, _index: int) -> str:
        """Empty, because the fingerprint covers the images."""
        return ""

    @cached_property
    def paths(self) -> Sequence[str]:
        """A name for every image."""
        return numbered(self.split, len(self))


def rank0_then_all(load: Callable[[], T]) -> T:
    """Load on rank 0, which may download, then on the other ranks from its disk."""
    from excb.distributed.collectives import run_on_rank0  # here: the table of sources needs no torch

    loaded: list[T] = []
    run_on_rank0(lambda: loaded.append(load()))
    return loaded[0] if loaded else load()
