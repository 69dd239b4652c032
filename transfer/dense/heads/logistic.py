"""scikit-learn's logistic regression on patches: each has the class of most of its pixels.

Letters: M patches, D feature width, C classes.
"""

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

from excb.distributed.collectives import run_on_rank0
from excb.seeding import Purpose, generator

from ..patches.features import Grid
from ..patches.metrics import areas_of, stacked
from .linear import LinearHead, Standardised
from .memory import Memory
from .recipes import LogisticRecipe

NEVER = -1e4  # score of a class that no patch has
HELD_OUT = 10  # one of so many views


def fit(
    memory: Memory,
    grid: Grid,
    recipe: LogisticRecipe,
    *,
    seed: int,
    progress: Callable[[int], None] = lambda _fits: None,
) -> tuple[LinearHead, float, list[str]]:
    """Fit on standardised patches; all ranks call this, rank 0 fits for all.

    Of several strengths the one is kept that has the highest mIoU of patches on a tenth of the views, which were held
    out, and it is fitted again on all; of equals the strongest penalty.

    Args:
        memory: of patches.
        grid: of a view.
        recipe: what is tried.
        seed: names the held-out views.
        progress: called with numbers of fits.

    Returns:
        The head on the CPU, the C that was kept, and sentences about fits that have not converged.
    """
    patches, labels = memory.patches, memory.labels
    chosen = np.arange(len(patches))
    if recipe.most is not None and len(chosen) > recipe.most:
        chosen = chosen[np.arange(recipe.most) * len(chosen) // recipe.most]
    norm = Standardised(patches)
    rows = norm(patches.whole[torch.from_numpy(chosen)]).double().numpy()
    classes = labels.majority(patches.chosen[chosen])
    notes: list[str] = []

    def one(strength: float, some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight, bias, converged = run_on_rank0(
            partial(_fit, rows[some], classes[some], strength, labels.classes, recipe.steps)
        )
        if not converged:
            notes.append(f"logistic regression with C = {strength:g} has not converged in {recipe.steps} steps")
        progress(1)
        return weight, bias

    best = recipe.strengths[0]
    views = patches.chosen[chosen] // grid.patches
    if len(recipe.strengths) > 1 and len(np.unique(views)) > 1:
        held = np.isin(views, _held_out(np.unique(views), seed))
        best = max(sorted(recipe.strengths), key=lambda C: _miou(rows[held], classes[held], *one(C, ~held)))
    weight, bias = one(best, np.ones(len(rows), bool))
    linear = nn.Linear(grid.channels, labels.classes)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weight))
        linear.bias.copy_(torch.from_numpy(bias))
    return LinearHead(norm, linear).eval(), best, [*dict.fromkeys(notes)]


def fits_of(recipe: LogisticRecipe) -> int:
    """How many regressions are fitted."""
    return len(recipe.strengths) + 1 if len(recipe.strengths) > 1 else 1


def _held_out(views: np.ndarray, seed: int) -> np.ndarray:
    return generator(Purpose.SPLIT, seed, len(views)).permutation(views)[: max(1, len(views) // HELD_OUT)]


def _miou(rows: np.ndarray, classes: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> float:
    predicted = (rows @ weight.T + bias).argmax(1)
    return stacked([areas_of(predicted, classes, len(bias))]).miou()


def _fit(
    rows: np.ndarray, classes: np.ndarray, strength: float, count: int, steps: int
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Weights [C, D] and biases [C] in float64, and whether they converged."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    weights, biases = np.zeros((count, rows.shape[1])), np.full(count, float(NEVER))
    present = np.unique(classes)
    if len(present) == 1:  # nothing to tell apart
        biases[present] = 0.0
        return weights, biases, True
    model = LogisticRegression(C=strength, max_iter=steps)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(rows, classes)
    converged = not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
    weight, bias = model.coef_, model.intercept_
    if len(present) == 2:  # scikit-learn keeps the difference: half of it up and half of it down is the same model
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    weights[present], biases[present] = weight, bias
    return weights, biases, converged
