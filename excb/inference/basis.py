"""The basis of intervals and tests: the sampling unit that each is over, and the method, in the words of results."""

from collections.abc import Container, Mapping
from typing import NamedTuple

from excb.inference.estimate import LEAST


class Basis(NamedTuple):
    """The sampling unit and the method of an interval."""

    unit: str  # drawn anew in thought: the interval says where the figure would be for others of the same kind
    method: str
    least: int = 0  # of which there is an interval; any number where 0

    def to_dict(self) -> dict[str, str]:
        """Plain values for JSON."""
        return {"unit": self.unit, "method": self.method}


def stated(bases: Mapping[str, Basis], intervals: Container[str]) -> dict[str, dict[str, str]]:
    """The basis of every figure for a result; of those without an interval, which have too few units, why."""
    return {
        name: basis.to_dict() | ({} if name in intervals else {"none": f"fewer than {basis.least} {basis.unit}s"})
        for name, basis in bases.items()
    }


IMAGE = "image"
WILSON = Basis(IMAGE, "Wilson")
AS_HITS = Basis(IMAGE, "Wilson, for as many hits as have this variance")
BOOTSTRAP = Basis(IMAGE, "studentised bootstrap")
STUDENT = Basis(IMAGE, "Student's t")
JACKKNIFE = Basis(IMAGE, "jackknife", LEAST)
EFFECTS = Basis("query and gallery image", "jackknife", LEAST)
HALVES = Basis("query and gallery image", "random halves", 2 * LEAST)
OVER_EPISODES = Basis("episode", "Student's t", 2)
