"""The one head: logistic regression on frozen features, its penalty chosen on held-out train images.

Chosen by cross-entropy: calibration is measured, and accuracy alone prefers penalties that make heads overconfident.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..probes.penalty import Chosen, Rule, choose_penalty, cross_validated, log_likelihood, right_share


@dataclass(frozen=True)
class Head:
    """The fitted head, and the penalty in the terms of `--l2`: C is 1 / (l2 N) on N train images."""

    chosen: Chosen
    images: int  # N

    @property
    def l2(self) -> float:
        """The penalty that was chosen."""
        return _l2(self.chosen.C, self.images)

    @property
    def sweep(self) -> list[dict[str, float]]:
        """The settings tried, with accuracy and loss on held-out images."""
        return [
            {
                "l2": _l2(C, self.images),
                "holdout_top1": round(100 * right, 4),
                "holdout_loss": round(-likelihood, 6),
            }
            for C, (likelihood, right) in self.chosen.sweep.items()
        ]

    def logits(self, rows: Tensor) -> Tensor:
        """Scores [N, C] float32 of features [N, D], on the CPU."""
        return self.chosen.scores(rows).float()


def fit_head(
    rows: Tensor,
    labels: Tensor,
    classes: int,
    penalties: Sequence[float],
    *,
    seed: int,
    few: bool = False,
    device: torch.device,
    progress: Callable[[int], None] = lambda _fits: None,
) -> Head:
    """Fit the head; with several penalties that of the least loss on held-out images, then again to all images.

    On few labels, features have one size instead of being standardised, and all images are held out in turn.

    Args:
        rows: [N, D] float32, features of the train images.
        labels: [N] int64.
        classes: C.
        penalties: l2, each above 0.
        seed: names the held-out images.
        few: take the form for few labels.
        device: where to compute.
        progress: called after every fit.

    Raises:
        UserError: there are several penalties, and no image can be held out.
    """
    strengths = [1 / (l2 * len(rows)) for l2 in penalties]

    def judge(scores: Tensor, true: Tensor) -> tuple[float, float]:
        return log_likelihood(scores, true), right_share(scores, true)

    if few:
        chosen = cross_validated(
            rows, labels, strengths, judge, classes=classes, seed=seed, device=device, progress=progress
        )
        return Head(chosen, len(rows))
    rule = Rule.held_out(seed, judge)
    chosen = choose_penalty(rows, labels, strengths, rule, classes=classes, device=device, progress=progress)
    return Head(chosen, len(rows))


def _l2(C: float, images: int) -> float:
    return float(f"{1 / (C * images):.12g}")  # as it was named, without the error of two divisions
