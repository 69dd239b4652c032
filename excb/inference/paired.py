"""Two results that can be compared: the same test images, and a paired test of a figure of each.

The sampling unit is the test image, with all that a protocol says of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from excb.errors import UserError, nearest_name
from excb.inference.basis import IMAGE

T = TypeVar("T")


@dataclass(frozen=True)
class PairedTest:
    """A paired test of two figures on the same images."""

    first: float  # the first figure in percent
    second: float  # the second
    difference: float  # second minus first
    interval: tuple[float, float] | None  # its 95 % interval; None of too few images
    only_first: int  # images that only the first has right, or on which it scores higher
    only_second: int  # the same of the second
    p_value: float  # of the hypothesis that both are equally good; 1 of too few images
    test: str  # the name of the test
    unit: str = IMAGE  # what it is over


@runtime_checkable
class PerImage(Protocol):
    """A protocol's answers for every image."""

    def columns(self, figure: str) -> dict[str, list[Any]]:
        """A value for every image by column, as `Result.predictions` returns them; UserError if no such figure."""


class Paired(ABC):
    """A result's answers for every test image, for a paired test against another result of its kind."""

    names: Sequence[str]  # the test images' paths
    judged: ClassVar[str]  # what is right or wrong, for a message

    @property
    @abstractmethod
    def main(self) -> list[str]:
        """The figures that `compare` tests by default."""

    @property
    @abstractmethod
    def testable(self) -> list[str]:
        """All figures that can be tested."""

    @abstractmethod
    def require_same_truth(self, other: Any, name: str, other_name: str) -> None:
        """Raise UserError where the same images have other labels; the names are those of the results."""

    @abstractmethod
    def compared(self, figure: str, other: Any, other_figure: str) -> PairedTest:
        """Test a figure of this result, the first, against one of another result, the second."""


def of_figure(figure: str, figures: Mapping[str, T]) -> T:
    """The entry of a figure. Raises UserError if there is none of this name."""
    if figure not in figures:
        raise UserError(f"no predictions of {figure}{nearest_name(figure, figures)} (there are {', '.join(figures)})")
    return figures[figure]
