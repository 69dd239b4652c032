"""Ranks and tiers: the one definition for every table that sets checkpoints side by side.

Two checkpoints differ in a figure where a paired test on the same images says so at 5 %, corrected by Holm's method for
all pairs of all figures of the table. The sampling unit is that of the paired tests: the test image.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import combinations
from typing import Literal, TypeVar

LEVEL = 0.05

Key = TypeVar("Key", bound=Hashable)
Pair = tuple[str, str, str]  # a figure, and the names of two that have it


def pairwise(figures: Mapping[str, Sequence[str]], p_value: Callable[[str, str, str], float]) -> dict[Pair, float]:
    """Corrected p-values of every two of a table.

    Args:
        figures: names of those that can be tested, by figure.
        p_value: of a paired test, given a figure and two names.
    """
    pairs = [(figure, *pair) for figure, names in figures.items() for pair in combinations(names, 2)]
    return holm({pair: p_value(*pair) for pair in pairs})


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """P-values corrected for their number (Holm, 1979): each times the number of those not smaller, never falling."""
    corrected, largest = dict[Key, float](), 0.0
    for number, (pair, value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, value * (len(p_values) - number)))
        corrected[pair] = largest
    return {pair: corrected[pair] for pair in p_values}


def tiers(
    figure: str, values: Mapping[str, float], p_values: Mapping[Pair, float], *, higher_is_better: bool = True
) -> dict[str, int]:
    """The tier of every name: 1 for the best and all that do not differ from it, 2 for the best of the rest, and so on.

    Args:
        figure: its name in `p_values`.
        values: of those that were tested, by name.
        p_values: as `pairwise` gives them.
        higher_is_better: whether the highest value is the best.
    """
    sign = -1 if higher_is_better else 1
    left, number, numbers = sorted(values, key=lambda name: sign * values[name]), 0, dict[str, int]()
    while left:
        number, best = number + 1, left[0]
        same = [name for name in left if name == best or _p_value(p_values, figure, best, name) >= LEVEL]
        numbers |= dict.fromkeys(same, number)
        left = [name for name in left if name not in same]
    return numbers


def _p_value(p_values: Mapping[Pair, float], figure: str, first: str, second: str) -> float:
    pair = (figure, first, second)
    return p_values[pair if pair in p_values else (figure, second, first)]


def ranks(
    values: Sequence[float], *, higher_is_better: bool = True, equals: Literal["first", "mean"] = "first"
) -> list[float]:
    """The rank of every value, 1 being the best; no sampling is involved.

    Args:
        values: finite ones.
        higher_is_better: whether the highest value is the best.
        equals: equal values share the "first" of their ranks, as in a table, or their "mean", as in means of ranks.
    """
    better = [sum(other > value if higher_is_better else other < value for other in values) for value in values]
    shared = [(values.count(value) - 1) / 2 if equals == "mean" else 0 for value in values]
    return [1 + above + more for above, more in zip(better, shared, strict=True)]
