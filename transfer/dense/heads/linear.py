"""Linear segmentation: a 1x1 convolution on frozen maps.

Letters: Q patches, D feature width, C classes, B views of a batch, h x w their patches, S side of a view.
"""

import math
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from excb.distributed.collectives import broadcast, rank
from excb.distributed.machine import to_device
from excb.seeding import Purpose, fold, generator

from ..layouts.masks import IGNORED
from ..patches.features import Grid, Patches
from ..patches.views import Views
from .memory import Memory
from .recipes import LinearRecipe

_SPAN = 2**16  # patches that are read at once


class LinearHead(nn.Module):
    """Patches [Q, D] -> scores [Q, C]: normalised, then a linear layer."""

    def __init__(self, norm: nn.Module, linear: nn.Linear) -> None:
        super().__init__()
        self.norm, self.linear = norm, linear

    def forward(self, patches: Tensor) -> Tensor:
        """Scores of patches."""
        return cast("Tensor", self.linear(self.norm(patches)))


class Standardised(nn.Module):
    """Features with the mean 0 and standard deviation 1 that those of the given patches have; constant ones are 0."""

    mean: Tensor
    scale: Tensor

    def __init__(self, patches: Patches) -> None:
        super().__init__()
        total, squares = torch.zeros(2, patches.width, dtype=torch.float64)
        spans = [(start, min(start + _SPAN, len(patches))) for start in range(0, len(patches), _SPAN)]
        for span in spans:
            total += patches.rows(*span).sum(0, dtype=torch.float64)
        mean = total / len(patches)
        for span in spans:  # a second pass: the difference of two large sums would lose all digits
            squares += (patches.rows(*span) - mean).square().sum(0)
        deviation = (squares / len(patches)).sqrt()
        scale = torch.where(deviation > 1e-6 * mean.abs() + 1e-12, 1 / deviation, 0.0)
        self.register_buffer("mean", mean.float())
        self.register_buffer("scale", scale.float())

    def forward(self, patches: Tensor) -> Tensor:
        """The same patches, standardised."""
        return (patches - self.mean) * self.scale


def train_dense_head(
    memory: Memory,
    views: Views,
    grid: Grid,
    recipe: LinearRecipe,
    *,
    seed: int,
    device: torch.device,
    progress: Callable[[int], None] = lambda _steps: None,
) -> LinearHead:
    """Train a head; all ranks call this, rank 0 trains for all.

    Args:
        memory: patches to train on; of recipes with a loss on pixels, only their images count.
        views: of the train images.
        grid: of a view.
        recipe: how.
        seed: of the weights, the order and dropout.
        device: where to compute.
        progress: called with numbers of steps.

    Returns:
        The head in eval mode, on the CPU and equal on all ranks.

    Raises:
        UserError: a mask cannot be used.
    """
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
        torch.manual_seed(fold(Purpose.TRANSFER_WEIGHTS, seed))
        norm = Standardised(memory.patches) if recipe.input == "standardised" else nn.BatchNorm1d(grid.channels)
        head = LinearHead(norm, nn.Linear(grid.channels, memory.labels.classes)).to(device)
        nn.init.normal_(head.linear.weight, std=0.01)
        nn.init.zeros_(head.linear.bias)
        if rank() == 0:
            _train(head, memory, views, grid, recipe, seed=seed, device=device, progress=progress)
    broadcast(head.state_dict().values())
    return head.eval().cpu()


def scorer_of(head: LinearHead) -> Callable[[Tensor], Tensor]:
    """A function from patches [Q, D] to scores [Q, C] by a head, a span at a time."""

    @torch.no_grad()
    def scores(rows: Tensor) -> Tensor:
        return torch.cat([head(part) for part in rows.split(_SPAN)])

    return scores


def steps_of(recipe: LinearRecipe, items: int) -> int:
    """The steps of a training on so many patches or views."""
    return max(recipe.steps, recipe.epochs * -(-items // recipe.batch))


def items_of(recipe: LinearRecipe, memory: Memory, grid: Grid) -> np.ndarray:
    """The items to draw from: places [n] int64 of patches in the memory, or views."""
    if recipe.loss == "patches":
        return np.arange(len(memory.patches))
    return np.unique(memory.patches.chosen // grid.patches)


def rate(recipe: LinearRecipe, step: int, steps: int) -> float:
    """The learning rate of a step, as a share of the recipe's."""
    done = step / steps
    left = (1 + math.cos(math.pi * done)) / 2 if recipe.schedule == "cosine" else 1 - done
    return left * min(1.0, max(1e-6, step / recipe.warmup)) if recipe.warmup else left


def _train(
    head: LinearHead,
    memory: Memory,
    views: Views,
    grid: Grid,
    recipe: LinearRecipe,
    *,
    seed: int,
    device: torch.device,
    progress: Callable[[int], None],
) -> None:
    items = items_of(recipe, memory, grid)
    steps = steps_of(recipe, len(items))
    optimizer = torch.optim.AdamW(head.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    head.train()
    order = _Order(items, min(recipe.batch, len(items)), seed)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * rate(recipe, step, steps)
        drawn = order.next()
        if recipe.loss == "patches":
            loss = _patch_loss(head, memory, drawn, device)
        else:
            loss = _pixel_loss(head, memory.patches, views, grid, drawn, dropout=recipe.dropout, device=device)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress(1)


class _Order:
    """Batches of one shuffled epoch after another; the last of an epoch is filled from the next one."""

    def __init__(self, items: np.ndarray, batch: int, seed: int) -> None:
        self._items, self._batch, self._seed = items, batch, seed
        self._epoch, self._left = 0, items[:0]

    def next(self) -> np.ndarray:
        """The items of the next batch, ascending: they are read in this order."""
        while len(self._left) < self._batch:
            random = generator(Purpose.TRANSFER_ORDER, self._seed, self._epoch)
            self._left = np.concatenate([self._left, random.permutation(self._items)])
            self._epoch += 1
        batch, self._left = self._left[: self._batch], self._left[self._batch :]
        return np.sort(batch)


def _patch_loss(head: LinearHead, memory: Memory, places: np.ndarray, device: torch.device) -> Tensor:
    """Cross-entropy with the shares of classes: the mean over a patch's pixels were all predicted alike."""
    rows = memory.patches.whole[torch.from_numpy(places)]
    shares = memory.labels.shares(memory.patches.chosen[places])
    return F.cross_entropy(head(to_device(rows, device)), to_device(shares, device))


def _pixel_loss(
    head: LinearHead,
    patches: Patches,
    views: Views,
    grid: Grid,
    drawn: np.ndarray,
    *,
    dropout: float,
    device: torch.device,
) -> Tensor:
    """Cross-entropy of scores that are upsampled to the pixels of the network's input."""
    rows = to_device(torch.stack([patches.view(view) for view in drawn.tolist()]), device)  # [B, P, D]
    masks = to_device(torch.from_numpy(np.stack([views.mask(view) for view in drawn.tolist()])), device)
    true = masks.long()  # [B, S, S]
    kept = F.dropout1d(rows.transpose(1, 2), dropout).transpose(1, 2) if dropout else rows
    maps = head(kept.flatten(0, 1)).view(*rows.shape[:2], -1).transpose(1, 2)  # [B, C, P]
    maps = maps.unflatten(2, (grid.height, grid.width))
    scores = F.interpolate(maps, true.shape[-2:], mode="bilinear", align_corners=False)
    total = F.cross_entropy(scores, true, ignore_index=IGNORED, reduction="sum")
    return total / (true != IGNORED).sum().clamp(min=1)
