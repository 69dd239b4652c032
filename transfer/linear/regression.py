"""Logistic regression by L-BFGS on features, of one class an image or of several, its penalty chosen on train images.

Letters: N train images, Q queries, D feature width, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from excb import seeding
from excb.errors import UserError

# Strengths of the L2 penalty: every decade of the 45 values of Kornblith et al. (2019), who sum the loss over images.
STRENGTHS = tuple(10.0**power for power in range(5, -7, -1))
HELD_OUT = 0.2  # share of the train images that choose among strengths
STEPS = 200  # of L-BFGS, at most

Score = Callable[[np.ndarray, np.ndarray], float]  # scores [Q, C] and targets -> a figure, higher is better


@dataclass(frozen=True)
class Regression:
    """A fitted model on standardised features."""

    mean: Tensor  # [D]
    deviation: Tensor  # [D]
    weight: Tensor  # [C, D]
    bias: Tensor  # [C]

    def scores(self, rows: Tensor) -> np.ndarray:
        """Log-odds or logits of every class, [Q, D] -> [Q, C] float64."""
        standard = (rows.to(self.weight) - self.mean) / self.deviation
        scores: np.ndarray = (standard @ self.weight.T + self.bias).cpu().numpy()
        return scores


@dataclass(frozen=True)
class Chosen:
    """A model of all train images, and how its strength was chosen."""

    model: Regression
    strength: float
    sweep: dict[float, float]  # strength -> figure of the held-out images


def fit(
    rows: Tensor, targets: np.ndarray, strengths: Sequence[float], classes: int, *, device: torch.device | str = "cpu"
) -> list[Regression]:
    """Minimise summed cross-entropy + strength / 2 * |weight|^2 in float64, each strength from the one before.

    Args:
        rows: [N, D] features.
        targets: class indices [N] for softmax regression; or [N, C] int8 (1, 0, -1 ignored), a regression a class.
        strengths: of the penalty, best from strong to weak; biases have none.
        classes: C.
        device: where to compute; MPS has no float64 and is replaced by the CPU.

    Returns:
        A model for each strength.
    """
    where = torch.device("cpu" if torch.device(device).type == "mps" else device)
    features = rows.to(where, torch.float64)
    mean, deviation = features.mean(0), features.std(0, correction=0)
    deviation = torch.where(deviation > 1e-6 * mean.abs() + 1e-12, deviation, 1.0)  # constant: 0 after the mean is gone
    features = (features - mean) / deviation
    loss = _loss(torch.from_numpy(targets).to(where))
    weight = torch.zeros(classes, features.shape[1], dtype=torch.float64, device=where, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, device=where, requires_grad=True)
    models = []
    for strength in strengths:
        _minimise(weight, bias, features, loss, strength)
        models.append(Regression(mean, deviation, weight.detach().clone(), bias.detach().clone()))
    return models


def _loss(targets: Tensor) -> Callable[[Tensor], Tensor]:
    """Logits [N, C] -> the sum of the images' losses."""
    if targets.ndim == 1:
        return lambda logits: F.cross_entropy(logits, targets, reduction="sum")
    known, positive = (targets >= 0).double(), (targets == 1).double()
    return lambda logits: F.binary_cross_entropy_with_logits(logits, positive, known, reduction="sum")


def _minimise(
    weight: Tensor, bias: Tensor, features: Tensor, loss: Callable[[Tensor], Tensor], strength: float
) -> None:
    """Move weight and bias to the optimum, which is unique but for what softmax leaves open."""
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=STEPS, tolerance_grad=1e-7, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        penalty = strength / 2 * weight.square().sum()
        value = (loss(features @ weight.T + bias) + penalty) / len(features)
        value.backward()
        return value

    optimizer.step(objective)


def choose(
    rows: Tensor,
    targets: np.ndarray,
    score: Score,
    classes: int,
    *,
    strengths: Sequence[float] = STRENGTHS,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Chosen:
    """Choose the strength on held-out train images, then fit it again on all of them.

    Args:
        rows: as `fit`.
        targets: as `fit`.
        score: the figure that chooses; of equals the stronger penalty is taken.
        classes: C.
        strengths: to choose from.
        seed: names the held-out images: a fifth of each class, or of all images where these have sets of labels.
        device: as `fit`.

    Raises:
        UserError: no image can be held out.
    """
    tried = sorted(set(strengths), reverse=True)
    if len(tried) == 1:
        return Chosen(fit(rows, targets, tried, classes, device=device)[0], tried[0], {})
    held = validation(targets, seed)
    inner = fit(rows[torch.from_numpy(~held)], targets[~held], tried, classes, device=device)
    queries, answers = rows[torch.from_numpy(held)], targets[held]
    sweep = {one: score(model.scores(queries), answers) for one, model in zip(tried, inner, strict=True)}
    best = max(tried, key=lambda one: sweep[one] if np.isfinite(sweep[one]) else -np.inf)
    return Chosen(fit(rows, targets, [best], classes, device=device)[0], best, sweep)


def validation(targets: np.ndarray, seed: int) -> np.ndarray:
    """Which train images are held out, [N] bool: a fifth of every class, at least one, never a class's only image.

    Raises:
        UserError: no class has two images.
    """
    held = np.zeros(len(targets), bool)
    groups = [np.flatnonzero(targets == label) for label in np.unique(targets)] if targets.ndim == 1 else [
        np.arange(len(targets))
    ]  # fmt: skip
    for number, members in enumerate(groups):
        count = min(len(members) - 1, max(1, round(HELD_OUT * len(members))))
        held[seeding.generator(seeding.Purpose.SPLIT, seed, number, 1).permutation(members)[:count]] = True
    if not held.any():
        raise UserError("no class has two train images, so none can be held out to choose the strength of the penalty")
    return held
