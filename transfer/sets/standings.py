"""Checkpoints on many sets: figures with tiers, their mean, and the mean of their ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Standing:
    """What was measured of a checkpoint or a reference with one head.

    Attributes:
        name: in tables.
        reference: whether it has no rank and no tier.
        figures: percent by set.
        intervals: 95 % by set, where there are any.
        draws: bootstrap draws [R] by set, in percent; the same images for all standings. Empty of n-shot figures.
    """

    name: str
    reference: bool
    figures: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    draws: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Cell:
    """A figure in percent, its 95 % interval, and its tier; None where there is none."""

    value: float
    interval: tuple[float, float] | None = None
    tier: int | None = None


@dataclass(frozen=True)
class Row:
    """A line of a table."""

    name: str
    reference: bool
    cells: Mapping[str, Cell]  # by set
    mean: Cell | None  # over the table's common sets; None where one of them is not measured
    rank: float | None  # mean of the ranks among checkpoints; None of references


@dataclass(frozen=True)
class Table:
    """One head: checkpoints, then references, x sets."""

    head: str
    sets: Sequence[str]
    common: Sequence[str]  # sets that every checkpoint has a figure of: means and ranks are over these
    rows: Sequence[Row]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [
            {
                "name": row.name,
                "reference": row.reference,
                "sets": {name: _plain(cell) for name, cell in row.cells.items()},
                "mean": None if row.mean is None else _plain(row.mean),
                "mean_rank": row.rank,
            }
            for row in self.rows
        ]
        return {"head": self.head, "sets": list(self.sets), "common": list(self.common), "rows": rows}


def _plain(cell: Cell) -> dict[str, Any]:
    return {"percent": cell.value, "interval": cell.interval, "tier": cell.tier}


def table(head: str, standings: Sequence[Standing], sets: Sequence[str]) -> Table:
    """Set standings side by side.

    Args:
        head: what judged the features.
        standings: checkpoints and references.
        sets: names, in the order of the columns; those that nobody has a figure of are left out.
    """
    checkpoints = [one for one in standings if not one.reference]
    named = [name for name in sets if any(name in one.figures for one in standings)]
    common = [name for name in named if all(name in one.figures for one in checkpoints)]
    per_set = {
        name: tiers(
            {one.name: one.figures[name] for one in checkpoints if name in one.draws},
            {one.name: one.draws[name] for one in checkpoints if name in one.draws},
        )
        for name in named
    }
    means = {one.name: _mean(one, common) for one in standings}
    whole = {one.name: np.mean([one.draws[name] for name in common], axis=0) for one in checkpoints
             if common and all(name in one.draws for name in common)}  # fmt: skip
    overall = tiers({name: means[name] or 0.0 for name in whole}, whole)
    ranks = mean_ranks(checkpoints, common)
    rows = []
    for one in standings:
        cells = {
            name: Cell(
                one.figures[name], one.intervals.get(name), None if one.reference else per_set[name].get(one.name)
            )
            for name in named
            if name in one.figures
        }
        mean = means[one.name]
        spread = middle(whole[one.name]) if one.name in whole else None
        rows.append(
            Row(
                one.name,
                one.reference,
                cells,
                None if mean is None else Cell(mean, spread, overall.get(one.name)),
                ranks.get(one.name),
            )
        )
    return Table(head, named, common, rows)


def _mean(one: Standing, common: Sequence[str]) -> float | None:
    """The mean over sets, each of which counts the same."""
    if not common or any(name not in one.figures for name in common):
        return None
    return float(np.mean([one.figures[name] for name in common]))


def mean_ranks(checkpoints: Sequence[Standing], sets: Sequence[str]) -> dict[str, float]:
    """The mean over sets of each checkpoint's rank, 1 being the best; equals share the mean of their ranks."""
    from scipy.stats import rankdata

    if not checkpoints or not sets:
        return {}
    values = np.array([[one.figures[name] for name in sets] for one in checkpoints])
    ranks = rankdata(-values, axis=0).mean(1)
    return {one.name: float(rank) for one, rank in zip(checkpoints, ranks, strict=True)}


def tiers(values: Mapping[str, float], draws: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Tier 1 is the best and all that do not differ from it; tier 2 the best of the rest and its equals; and so on.

    Two do not differ where the 95 % interval of the difference of their draws, which are of the same images, holds 0.

    Args:
        values: figures by name; higher is better.
        draws: bootstrap draws [R] by name.
    """
    left, found, number = sorted(values, key=lambda name: -values[name]), dict[str, int](), 0
    while left:
        number, best = number + 1, left[0]
        same = [name for name in left if name == best or middle(draws[best] - draws[name])[0] <= 0]
        found |= dict.fromkeys(same, number)
        left = [name for name in left if name not in same]
    return found


def middle(draws: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of draws; those that are NaN, of which no image was of a class, are left out."""
    low, high = np.percentile(draws[~np.isnan(draws)], [2.5, 97.5])
    return round(float(low), 4), round(float(high), 4)
