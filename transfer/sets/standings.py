"""Checkpoints on many sets under one head: figures with tiers, their mean, and the mean of their ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from excb.inference.accuracy import mcnemar
from excb.inference.estimate import Estimate, mean_of
from excb.inference.jackknife import Replicates
from excb.inference.tiers import ranks

from ..standings.table import FigureCell, FigureColumn, FigureRow, FigureTable, with_tiers
from .metrics import TOP1, Metric

MEAN = "mean of sets"  # the column of means; no set's name has a space


@dataclass(frozen=True)
class SetAnswers:
    """The answers of one backbone to the test images of a set, as `Metric` takes them."""

    metric: Metric
    answers: np.ndarray
    targets: np.ndarray

    @cached_property
    def replicates(self) -> Replicates:
        """The figure, and what it is without some images; see `Metric.replicates`."""
        return self.metric.replicates(self.answers, self.targets)

    @property
    def spread(self) -> Estimate:
        """The figure, 0 to 1, with its spread. The sampling unit is the test image."""
        return self.replicates.spread()

    def lead_over(self, other: "SetAnswers") -> Estimate:
        """This figure minus the other's, with its spread; both of the same images."""
        return self.replicates.lead_over(other.replicates)

    def p_value(self, other: "SetAnswers") -> float:
        """Of a paired test of both figures: McNemar's of hits, and otherwise by the jackknife."""
        if self.metric.name == TOP1.name:
            return mcnemar(torch.from_numpy(self.answers), torch.from_numpy(other.answers))
        return self.lead_over(other).p_value()


@dataclass(frozen=True)
class HeadFigures:
    """All figures of a checkpoint or a reference with one head.

    Attributes:
        name: in tables.
        reference: whether it has no rank and no tier.
        figures: percent by set.
        intervals: 95 % by set, where there are any.
        answers: by set; empty of n-shot figures.
    """

    name: str
    reference: bool
    figures: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    answers: Mapping[str, SetAnswers]

    def mean(self, sets: Sequence[str]) -> FigureCell | None:
        """The mean over sets, each of which counts the same; None where one is missing."""
        if not sets or any(name not in self.figures for name in sets):
            return None
        known = all(name in self.answers for name in sets)
        ends = mean_of([self.answers[name].spread for name in sets]).interval() if known else None
        return FigureCell(float(np.mean([self.figures[name] for name in sets])), ends)


@dataclass(frozen=True)
class HeadTable:
    """One head: checkpoints, then references, x sets.

    Attributes:
        head: that judged the features.
        common: sets that every checkpoint has a figure of: means and ranks are over these.
        ranks: the mean of the ranks among checkpoints, by name.
        table: the figures of every set, and their means in the column `MEAN`.
    """

    head: str
    common: Sequence[str]
    ranks: Mapping[str, float]
    table: FigureTable

    @property
    def sets(self) -> list[str]:
        """The sets that anybody has a figure of."""
        return [column.key for column in self.table.columns if column.key != MEAN]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [
            {
                "name": row.name,
                "reference": row.reference,
                "sets": {name: row.cells[name].to_dict() for name in self.sets if name in row.cells},
                "mean": row.cells[MEAN].to_dict() if MEAN in row.cells else None,
                "mean_rank": None if row.reference else self.ranks.get(row.name),
            }
            for row in self.table.rows
        ]
        return {"head": self.head, "sets": self.sets, "common": list(self.common), "rows": rows}


def head_table(head: str, title: str, measured: Sequence[HeadFigures], sets: Sequence[str]) -> HeadTable:
    """Set figures of one head side by side.

    Args:
        head: that judged the features.
        title: of the table.
        measured: checkpoints and references.
        sets: names, in the order of the columns; those that nobody has a figure of are left out.
    """
    checkpoints = {one.name: one for one in measured if not one.reference}
    named = [name for name in sets if any(name in one.figures for one in measured)]
    common = [name for name in named if all(name in one.figures for one in checkpoints.values())]
    mean_ranks = _mean_ranks(checkpoints, common)
    rows = []
    for one in measured:
        cells = {name: FigureCell(one.figures[name], one.intervals.get(name)) for name in named if name in one.figures}
        mean, rank = one.mean(common), "" if one.reference or not mean_ranks else f"{mean_ranks[one.name]:.2f}"
        rows.append(FigureRow(one.name, cells | ({MEAN: mean} if mean else {}), [rank], one.reference))
    columns = [*(FigureColumn(name, name) for name in named), FigureColumn(MEAN, f"mean of {len(common)}")]
    tested = {name: [key for key, one in checkpoints.items() if name in one.answers] for name in named}
    answered = [key for key, one in checkpoints.items() if common and all(name in one.answers for name in common)]

    def p_value(column: str, first: str, second: str) -> float:
        one, other = checkpoints[first].answers, checkpoints[second].answers
        if column != MEAN:
            return one[column].p_value(other[column])
        return mean_of([one[name].lead_over(other[name]) for name in common]).p_value()

    table = FigureTable(columns, rows, title=title, facts=["mean rank"])
    return HeadTable(head, common, mean_ranks, with_tiers(table, tested | {MEAN: answered}, p_value))


def _mean_ranks(checkpoints: Mapping[str, HeadFigures], sets: Sequence[str]) -> dict[str, float]:
    """The mean over sets of each checkpoint's rank, 1 being the best; equals share the mean of their ranks."""
    if not sets:
        return {}
    by_set = [ranks([one.figures[name] for one in checkpoints.values()], equals="mean") for name in sets]
    return {name: float(np.mean(own)) for name, own in zip(checkpoints, zip(*by_set, strict=True), strict=True)}
