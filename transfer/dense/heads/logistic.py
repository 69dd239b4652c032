"""Logistic regression on patches: each has the class of most of its pixels.

Letters: M patches, D feature width, C classes.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from excb.distributed.collectives import run_on_rank0
from excb.seeding import Purpose, generator

from ...probes.logistic import Standard
from ...probes.penalty import Rule, choose_penalty
from ..patches.features import Grid
from ..patches.metrics import areas_of, stacked
from .linear import LinearHead, Standardised
from .memory import Memory
from .recipes import LogisticRecipe

HELD_OUT = 10  # one of so many views


def fit_to_patches(
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
    numbers = np.arange(len(patches))
    if recipe.most is not None and len(numbers) > recipe.most:
        numbers = numbers[np.arange(recipe.most) * len(numbers) // recipe.most]
    norm, views = Standardised(patches), patches.chosen[numbers] // grid.patches
    several = len(np.unique(views)) > 1
    chosen = run_on_rank0(
        lambda: choose_penalty(
            norm(patches.whole[torch.from_numpy(numbers)]),
            torch.from_numpy(labels.majority(patches.chosen[numbers])),
            recipe.strengths if several else recipe.strengths[:1],
            Rule(lambda _classes: [torch.from_numpy(np.isin(views, _held_out(np.unique(views), seed)))], _miou),
            classes=labels.classes,
            standard=Standard(torch.zeros(1), torch.ones(1)),  # they are: by all patches of the memory
            steps=recipe.steps,
            progress=progress,
        )
    )
    linear = nn.Linear(grid.channels, labels.classes)
    with torch.no_grad():
        linear.weight.copy_(chosen.model.weight)
        linear.bias.copy_(chosen.model.bias)
    return LinearHead(norm, linear).eval(), chosen.C, chosen.notes


def _held_out(views: np.ndarray, seed: int) -> np.ndarray:
    return generator(Purpose.SPLIT, seed, len(views)).permutation(views)[: max(1, len(views) // HELD_OUT)]


def _miou(scores: Tensor, classes: Tensor) -> tuple[float]:
    return (stacked([areas_of(scores.argmax(1).numpy(), classes.numpy(), scores.shape[1])]).miou(),)
