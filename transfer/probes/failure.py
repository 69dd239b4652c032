"""Whether a head failed: k-NN of the same features is right more often, by more than chance.

The sampling unit is the test image. Then the figure says something of the head, and little of the checkpoint.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from excb.distributed.collectives import run_on_rank0
from excb.inference.accuracy import accuracy, accuracy_interval, mcnemar
from excb.inference.tiers import LEVEL
from excb.neighbours.knn import vote
from excb.neighbours.nearest import nearest

from .rows import READ, Rows

K, TEMPERATURE = 20, 0.07  # of the vote
MOST_PAIRS = 2**29  # of a test and a train image; beyond, a head has labels enough


@dataclass(frozen=True)
class SameFeatures:
    """The vote of the nearest train images, on the features that a head saw.

    Attributes:
        hits: [Q] bool, which test images it has right.
    """

    hits: Tensor

    @classmethod
    def of(
        cls,
        train: tuple[Rows, Tensor],
        test: tuple[Rows, Tensor],
        *,
        classes: int,
        device: torch.device,
        channels: int | None = None,
    ) -> Self | None:
        """The vote on features of train and test images; all ranks call this.

        Args:
            train: features [N, D] and classes [N].
            test: features [Q, D] and classes [Q].
            classes: number of classes in train.
            device: where to compute.
            channels: of patches, whose mean is compared; None of features as they are.

        Returns:
            None where there are more pairs of images than `MOST_PAIRS`, or features that are not finite.
        """
        if len(train[1]) * len(test[1]) > MOST_PAIRS:
            return None

        def voted() -> Tensor | None:
            bank, queries = (_vectors(rows, channels) for rows in (train[0], test[0]))
            if not all(bool(rows.isfinite().all()) for rows in (bank, queries)):
                return None
            k = min(K, len(bank))
            neighbours = nearest(bank, queries, k, device=device)
            votes = vote(neighbours, train[1], ks=[k], temperatures=[TEMPERATURE], classes=classes)
            return votes[k, TEMPERATURE].top1 == test[1]

        hits = run_on_rank0(voted)
        return None if hits is None else cls(hits)

    @property
    def percent(self) -> float:
        """Top-1 accuracy."""
        return round(accuracy(self.hits), 4)

    def blame(self, hits: Tensor, *, guessing: float, advice: str) -> list[str]:
        """A sentence that blames the head, where it did worse than the vote by more than chance.

        So it is where it does no better than guessing while the vote does.

        Args:
            hits: [Q] bool, which test images the head has right.
            guessing: accuracy in percent of always guessing the most frequent class.
            advice: what to try instead.
        """
        own, p_value = accuracy(hits), mcnemar(hits, self.hits)
        at_chance = accuracy_interval(hits)[0] <= guessing < accuracy_interval(self.hits)[0]
        if self.percent <= own or not (p_value < LEVEL or at_chance):
            return []
        return [
            f"the head failed, not the checkpoint: k-NN (k = {K}) of the same features has {self.percent:.2f} %, "
            f"{self.percent - own:.1f} points more than this head (McNemar's test, p = {p_value:.2g}); {advice}"
        ]


def _vectors(rows: Rows, channels: int | None) -> Tensor:
    """A vector per image: its features as they are, or the mean of its patches."""
    if channels is None:
        return rows if isinstance(rows, Tensor) else rows.all()
    parts = torch.arange(len(rows)).split(READ)
    return torch.cat([rows[part].unflatten(1, (-1, channels)).mean(1) for part in parts])
