"""Learning from teachers as its docstrings state it: an oracle in loops over views, images, keys, clusters and cells.

Written from the equations, not from `pretrain.distil`: one number at a time, and autograd differentiates it.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.oracle import argmax, balance, cross_entropy, softmax

Rows = Any  # [view][image] -> a row [D]: nested lists, or one tensor


def unit(row: Tensor) -> Tensor:
    """A row of length 1; zeros stay zeros."""
    return row / row.norm() if bool(row.any()) else row


def weight(sees: str, target: int, view: int, *, globals_: int, views: int) -> float:
    """Of a pair of a target and a view of the student: all pairs that count weigh the same, and sum to 1."""

    def counts(target: int, view: int) -> bool:
        return {"image": True, "view": target == view, "other_view": target != view}[sees]

    targets = range({"image": 1, "view": views, "other_view": globals_}[sees])
    pairs = sum(counts(t, v) for t in targets for v in range(views))
    return counts(target, view) / pairs


def over_pairs(terms: Sequence[Sequence[Sequence[Tensor]]], weights: Tensor) -> Tensor:
    """Of [target][view][image]: the mean over images, weighted by pairs [T, V]."""
    total = torch.zeros((), dtype=torch.float64)
    for t, views in enumerate(terms):
        for v, images in enumerate(views):
            total = total + float(weights[t, v]) * torch.stack(list(images)).sum() / len(images)
    return total


def distance(predicted: Tensor, target: Tensor, kind: str) -> Tensor:
    """1 - cosine with a unit target, or the mean squared error towards sqrt(D) times it."""
    if kind == "cosine":
        return 1 - predicted.dot(target) / predicted.norm()
    width = len(target)
    return torch.stack([(predicted[d] - math.sqrt(width) * target[d]) ** 2 for d in range(width)]).sum() / width


def features(predicted: Rows, targets: Rows, weights: Tensor, *, kind: str) -> Tensor:
    """The distance of every prediction from every target of its image."""
    terms = [
        [[distance(row, target[n], kind) for n, row in enumerate(view)] for view in predicted] for target in targets
    ]
    return over_pairs(terms, weights)


def similarities(
    predicted: Rows, targets: Rows, weights: Tensor, queue: Sequence[Tensor], *, tau_t: float, tau_s: float
) -> Tensor:
    """H(p_t, p_s) over the first targets of the batch's other images, and the queue's rows."""

    def term(target: Tensor, row: Tensor, image: int) -> Tensor:
        keys = [key for n, key in enumerate(targets[0]) if n != image] + list(queue)
        p_t = softmax(torch.stack([target.dot(key) for key in keys]), tau_t)
        p_s = softmax(torch.stack([unit(row).dot(key) for key in keys]), tau_s)
        return cross_entropy(p_t.detach(), p_s)

    terms = [[[term(target[n], row, n) for n, row in enumerate(view)] for view in predicted] for target in targets]
    return over_pairs(terms, weights)


def balanced(target: Tensor, centroids: Tensor, sizes: Sequence[float], tau_t: float) -> Tensor:
    """p_t = softmax(B(t . c_k; s) / tau_t), [K]."""
    z = [balance(float(target.dot(c)), sizes[k], len(sizes), "linear") for k, c in enumerate(centroids)]
    return softmax(torch.tensor(z, dtype=torch.float64), tau_t)


def assignments(
    predicted: Rows,
    targets: Rows,
    weights: Tensor,
    centroids: Tensor,
    sizes: Sequence[float],
    *,
    tau_t: float,
    tau_s: float,
) -> tuple[Tensor, list[list[int]]]:
    """H(p_t, p_s) over clusters, and the winners [image][target]."""
    p_t = [[balanced(row, centroids, sizes, tau_t) for row in target] for target in targets]
    terms = [
        [
            [
                cross_entropy(p_t[t][n], softmax(torch.stack([unit(row).dot(c) for c in centroids]), tau_s))
                for n, row in enumerate(view)
            ]
            for view in predicted
        ]
        for t in range(len(targets))
    ]
    winners = [[argmax(target[n].tolist()) for target in p_t] for n in range(len(targets[0]))]
    return over_pairs(terms, weights), winners


def maps(predicted: Tensor, targets: Tensor, weights: Sequence[float], *, kind: str) -> Tensor:
    """The mean over cells and images of every view's distances, of maps [v, B, D, h, w] on one grid."""
    views, images, _, height, width = predicted.shape
    total = torch.zeros((), dtype=torch.float64)
    for v in range(views):
        cells = [(n, y, x) for n in range(images) for y in range(height) for x in range(width)]
        found = [distance(predicted[v, n, :, y, x], targets[v, n, :, y, x], kind) for n, y, x in cells]
        total = total + weights[v] * torch.stack(found).sum() / len(cells)
    return total


def averaged(cells: Tensor, height: int, width: int) -> Tensor:
    """A map [D, H, W] on a coarser grid that divides its own: the mean of the cells of each block."""
    depth, rows, columns = cells.shape
    tall, wide = rows // height, columns // width
    made = torch.zeros(depth, height, width, dtype=cells.dtype)
    for d in range(depth):
        for y in range(height):
            for x in range(width):
                block = [cells[d, y * tall + i, x * wide + j] for i in range(tall) for j in range(wide)]
                made[d, y, x] = torch.stack(block).sum() / len(block)
    return made


def bilinear(cells: Tensor, height: int, width: int) -> Tensor:
    """A map [D, H, W] on a finer grid: at each centre the mean of four cells, weighted by nearness; edges repeat."""
    depth, rows, columns = cells.shape
    made = torch.zeros(depth, height, width, dtype=cells.dtype)
    for y in range(height):
        for x in range(width):
            v = min(max((y + 0.5) * rows / height - 0.5, 0), rows - 1)
            u = min(max((x + 0.5) * columns / width - 0.5, 0), columns - 1)
            top, left = min(int(v), rows - 2), min(int(u), columns - 2)
            for d in range(depth):
                for i, share_i in ((top, 1 - (v - top)), (top + 1, v - top)):
                    for j, share_j in ((left, 1 - (u - left)), (left + 1, u - left)):
                        made[d, y, x] += share_i * share_j * cells[d, i, j]
    return made
