"""How a cell is judged: linear heads, attentive probes or a k-NN vote, chosen on held-out images."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from excb.console import Reporter
from excb.distributed.collectives import all_succeed, run_on_rank0, world_size
from excb.neighbours.knn import vote
from excb.neighbours.nearest import nearest

from ..features.parts import PartRows, Shapes
from ..probes.penalty import Chosen, cross_validated, log_likelihood, right_share
from ..probes.recipes import LinearProtocol
from ..probes.rows import Rows
from ..probes.selection import Choice as HeadChoice
from ..probes.selection import Fit, HeadSettings, choose_held_out, held_out, outcome_of
from ..probes.training import attentive_bank, fitting, linear_bank, scaled_rows, tried
from ..task import Task
from .cells import Cell
from .poolings import ATTENTIVE

CELL_STRENGTHS = (0.1, 1.0)  # values of C that a cell's regression on few labels is chosen from


@dataclass(frozen=True)
class Judged:
    """A cell on the held-out images."""

    cell: Cell
    width: int  # numbers of an image that heads see; of patches those of one
    settings: HeadSettings  # of the best head, or of the vote
    right: int  # of the held-out images
    loss: float  # mean cross-entropy there; 0 of votes, which have none
    images: int  # held out

    @property
    def percent(self) -> float:
        """Held-out top-1 accuracy."""
        return round(100 * self.right / self.images, 4)

    def row(self) -> dict[str, Any]:
        """For the result."""
        where = {"block": self.cell.block + 1, "pooling": self.cell.pooling, "width": self.width}
        return where | {"holdout_top1": self.percent} | dict(self.settings)


@dataclass(frozen=True)
class CellHeads:
    """Linear heads, and attentive probes where a cell is of patches.

    Args:
        task: backbone and images.
        linear: heads of vectors, on many labels.
        attentive: of patches.
        shapes: of the backbone.
        seed: names held-out images, first weights and order.
        few: on few labels, vectors have a logistic regression, and every train image is held out once.
    """

    task: Task
    linear: LinearProtocol
    attentive: LinearProtocol
    shapes: Shapes
    seed: int
    few: bool = False

    def judge(self, cell: Cell, rows: PartRows) -> Judged:
        """Train without the held-out images, and choose a head on these."""
        labels = _labels(self.task)
        if self.few and cell.pooling != ATTENTIVE:
            fitted = run_on_rank0(lambda: self._regression(rows.all(), labels, CELL_STRENGTHS))
            share, likelihood = fitted.sweep[fitted.C]
            right = round(share * len(labels))
            return Judged(cell, rows.width, {"C": fitted.C}, right, -likelihood, len(labels))
        ready, _ = _prepared(cell, rows)
        plan, fit = self._plan(cell), self._fit(cell, rows)
        choice, (right, loss) = choose_held_out(tried(plan), ready, labels, fit, seed=self.seed, folded=self.few)
        images = len(labels) if self.few else int(held_out(labels.numpy(), self.seed).sum())
        return Judged(cell, self._width(cell, rows), tried(plan)[choice.head], right, loss, images)

    def _regression(self, rows: Tensor, labels: Tensor, strengths: Sequence[float]) -> Chosen:
        return cross_validated(
            rows,
            labels,
            strengths,
            lambda scores, true: (right_share(scores, true), log_likelihood(scores, true)),
            classes=len(self.task.train.classes or ()),
            seed=self.seed,
            device=self.task.device,
        )

    def predict(self, judged: Judged, rows: PartRows, test: PartRows) -> Tensor:
        """Train the chosen head on all train images: its guesses [Q, 5 or fewer] for the test images."""
        if "C" in judged.settings:
            strengths = (judged.settings["C"],)
            return run_on_rank0(lambda: self._regression(rows.all(), _labels(self.task), strengths).top(test.all()))
        ready, asked = _prepared(judged.cell, rows, test)
        labels = _labels(self.task)
        fit = self._fit(judged.cell, rows)
        bank = fit(ready, labels, torch.arange(len(labels)), [judged.settings])
        return outcome_of(bank, 0, asked, HeadChoice(0, {"chosen": judged.settings}), {}).top5

    def _width(self, cell: Cell, rows: PartRows) -> int:
        return self.shapes.maps[cell.block][0] if cell.pooling == ATTENTIVE else rows.width

    def _plan(self, cell: Cell) -> LinearProtocol:
        return self.attentive if cell.pooling == ATTENTIVE else self.linear

    def _fit(self, cell: Cell, rows: PartRows) -> Fit:
        plan, attentive = self._plan(cell), cell.pooling == ATTENTIVE
        make = partial(attentive_bank if attentive else linear_bank, self.task, plan, seed=self.seed)
        width = self._width(cell, rows)
        return fitting(lambda heads: make(heads, width), plan, Reporter(quiet=True), what=cell.text, seed=self.seed)


@dataclass(frozen=True)
class Votes:
    """The weighted vote of the nearest train images, as `excb-eval knn` has it."""

    task: Task
    k: int
    temperature: float
    seed: int

    def judge(self, cell: Cell, rows: PartRows) -> Judged:
        """The held-out images by all others."""
        labels = _labels(self.task)
        held = torch.from_numpy(all_succeed(lambda: held_out(labels.numpy(), self.seed)))
        features = rows.all()
        top5 = self._vote(features[~held], labels[~held], features[held])
        right = int((top5[:, 0] == labels[held]).sum())
        settings: HeadSettings = {"k": float(self.k), "T": self.temperature}
        return Judged(cell, rows.width, settings, right, 0.0, int(held.sum()))

    def predict(self, judged: Judged, rows: PartRows, test: PartRows) -> Tensor:
        """Guesses [Q, 5 or fewer] for the test images by all train images."""
        del judged
        return self._vote(rows.all(), _labels(self.task), test.all())

    def _vote(self, bank: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
        k = min(self.k, len(bank))
        neighbours = nearest(bank, queries, k, share=world_size() > 1, device=self.task.device)
        classes = len(self.task.train.classes or ())
        votes = vote(neighbours, labels, ks=[k], temperatures=[self.temperature], classes=classes)
        return votes[k, self.temperature].top5


def _prepared(cell: Cell, *sets: PartRows) -> tuple[Rows, Rows]:
    """Train rows, and those of the last set, scaled. Vectors are read into memory; patches are not."""
    train, other = scaled_rows(sets[0], sets[-1])
    if cell.pooling == ATTENTIVE:
        return train, other
    rows = train.all()
    return rows, rows if len(sets) == 1 else other.all()


def best_of(judged: Sequence[Judged]) -> Judged:
    """The cell with most right answers; among equals the one of least loss, then the first."""
    return max(judged, key=lambda each: (each.right, -each.loss))


def _labels(task: Task) -> Tensor:
    assert task.train.labels is not None
    return torch.from_numpy(task.train.labels)
