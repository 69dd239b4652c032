"""The one head: multinomial logistic regression on frozen features, its penalty chosen on held-out train images.

Chosen by cross-entropy: calibration is measured, and accuracy alone prefers penalties that make heads overconfident.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from excb.errors import UserError

from ..data.splits import stratified_split

L2 = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5)  # penalties that are tried
STEPS = 500  # of L-BFGS, at most
_HELD_OUT = 0.1  # share of every class's train images
_ROWS = 8192  # at once: scores of all train images of ImageNet would take gigabytes


@dataclass(frozen=True)
class Head:
    """A linear classifier on features as they are."""

    weight: Tensor  # [C, D] float32
    bias: Tensor  # [C]
    l2: float  # the penalty that was chosen
    sweep: tuple[dict[str, float], ...] = ()  # what was tried, with accuracy and loss on held-out images

    def logits(self, rows: Tensor) -> Tensor:
        """Scores [N, C] of features [N, D], on the CPU."""
        return torch.cat([F.linear(part, self.weight, self.bias) for part in rows.split(_ROWS)])


def held_out(labels: np.ndarray, seed: int) -> np.ndarray:
    """Indices of the train images that choose the penalty: a tenth of every class, never a class's only image.

    Raises:
        UserError: no class has two images.
    """
    several = np.flatnonzero(np.bincount(labels)[labels] > 1)
    if not len(several):
        raise UserError("no class has two train images, so that none can be held out: name one --l2")
    held: np.ndarray = several[stratified_split(labels[several], _HELD_OUT, seed)]
    return held


def fit(
    rows: Tensor,
    labels: Tensor,
    classes: int,
    penalties: Sequence[float],
    *,
    seed: int,
    device: torch.device,
    progress: Callable[[int], None] = lambda _fits: None,
) -> Head:
    """Fit the head; with several penalties that of the least loss on held-out images, then again to all images.

    Minimises the mean cross-entropy plus l2 / 2 times the squared norm of the weights on standardised features, without
    the biases: scikit-learn's C is 1 / (l2 N).

    Args:
        rows: [N, D] float32, features of the train images.
        labels: [N] int64.
        classes: C.
        penalties: l2, each above 0.
        seed: names the held-out images.
        device: where to compute.
        progress: called after every fit, `fits_of(penalties)` times.

    Raises:
        UserError: there are several penalties, and no image can be held out.
    """
    mean, scale = rows.mean(0), rows.std(0, correction=0)
    scale = torch.where(scale > 1e-6 * mean.abs() + 1e-12, scale, 1.0)  # constant: 0 after the mean is gone
    tried, sweep = sorted(set(penalties), reverse=True), list[dict[str, float]]()
    whole = ((rows - mean) / scale).to(device)
    targets = labels.to(device)
    best, start = tried[0], torch.zeros(classes, rows.shape[1] + 1, device=device)
    if len(tried) > 1:
        held = torch.zeros(len(rows), dtype=torch.bool, device=device)
        held[torch.from_numpy(held_out(labels.numpy(), seed)).to(device)] = True
        for l2 in tried:  # each starts where the stronger penalty ended
            start = _minimise(whole[~held], targets[~held], l2, start)
            progress(1)
            scores = _scores(start, whole[held])
            right = int((scores.argmax(1) == targets[held]).sum())
            accuracy, missed = round(100 * right / int(held.sum()), 4), float(F.cross_entropy(scores, targets[held]))
            sweep.append({"l2": l2, "holdout_top1": accuracy, "holdout_loss": round(missed, 6)})
        best = min(sweep, key=lambda one: (one["holdout_loss"], -one["l2"]))["l2"]
        start = torch.zeros_like(start)
    solution = _minimise(whole, targets, best, start).cpu()
    progress(1)
    weight = solution[:, :-1] / scale
    return Head(weight, solution[:, -1] - weight @ mean, best, tuple(sweep))


def fits_of(penalties: Sequence[float]) -> int:
    """How many fits `fit` needs."""
    tried = len(set(penalties))
    return tried + (tried > 1)


def _scores(solution: Tensor, rows: Tensor) -> Tensor:
    """Scores [N, C] by weights and, in the last column, biases [C, D + 1]."""
    return F.linear(rows, solution[:, :-1], solution[:, -1])


def _minimise(rows: Tensor, labels: Tensor, l2: float, start: Tensor) -> Tensor:
    solution = start.detach().clone().requires_grad_()
    search = torch.optim.LBFGS(
        [solution],
        max_iter=STEPS,
        tolerance_grad=1e-6,
        tolerance_change=1e-10,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        search.zero_grad()
        penalty = l2 / 2 * solution[:, :-1].square().sum()
        penalty.backward()
        total = penalty.detach()
        for part, targets in zip(rows.split(_ROWS), labels.split(_ROWS), strict=True):
            each = F.cross_entropy(_scores(solution, part), targets, reduction="sum") / len(rows)
            each.backward()
            total = total + each.detach()
        return total

    with torch.enable_grad():
        search.step(loss)
    return solution.detach()
