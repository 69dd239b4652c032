"""What data sets that have names share, torchvision's and the Hub's: splits, numbered images, failures in one line."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np

from excb.distributed.collectives import run_on_rank0

Split = Literal["train", "test"]
Note = Callable[[str], None]
T = TypeVar("T")


def numbered(split: str, count: int) -> list[str]:
    """Names that sort as the numbers do."""
    digits = max(5, len(str(count - 1)))
    return [f"{split}/{number:0{digits}}" for number in range(count)]


class NumberedImages:
    """What sets of images without names share: numbers instead, and a fingerprint that covers the images themselves."""

    split: str
    labels: np.ndarray

    def __len__(self) -> int:
        """Number of images."""
        return len(self.labels)

    def stamp(self, _index: int) -> str:
        """Nothing: the fingerprint covers the images."""
        return ""

    @cached_property
    def paths(self) -> Sequence[str]:
        """A name for every image."""
        return numbered(self.split, len(self))


def first_then_all(load: Callable[[], T]) -> T:
    """Load in process 0, which may have to download, and then in the others from its disk."""
    loaded: list[T] = []
    run_on_rank0(lambda: loaded.append(load()))
    return loaded[0] if loaded else load()


def one_line(error: Exception) -> str:
    """What a library says of its failure, in one line that is not too long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."
