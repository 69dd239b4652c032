"""Hits of images that are each other's neighbours, on random halves of them: the spread of their mean follows.

Letters: N images, M nearest others of each, P divisions into halves. The sampling unit is the image, which is query and
gallery image at once.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from excb.inference.halves import divisions, enough
from excb.neighbours.nearest import Neighbours


def enough_neighbours(k: int, images: int) -> int:
    """M, of which about half are in an image's half: enough for k of these, as far as there are images."""
    return min(enough(k), images - 1)


def vote_on_halves(neighbours: Neighbours, labels: Tensor, *, k: int, temperature: float, classes: int) -> np.ndarray:
    """Whether the weighted vote of the others in its half is right of each image, by division.

    Args:
        neighbours: M others of each image, of which the first k in its half vote.
        labels: [N] classes.
        k: neighbours that vote.
        temperature: divisor of the similarities.
        classes: their number.

    Returns:
        [P, N] bool.
    """
    similarities = neighbours.similarities
    weights = ((similarities - similarities[:, :1]) / temperature).exp().float()
    voted, scores = labels[neighbours.indices], weights.new_zeros(len(labels), classes)

    def right(same: Tensor) -> Tensor:
        counted = torch.where(same & (same.cumsum(1, dtype=torch.int32) <= k), weights, 0.0)
        return scores.zero_().scatter_add_(1, voted, counted).argmax(1) == labels

    return _on_halves(neighbours.indices, right)


def retrieval_on_halves(nearest_images: Tensor) -> np.ndarray:
    """Whether the nearest image of each image's view in its half is its own, by division: [P, N] bool.

    Args:
        nearest_images: [N, M] the images nearest to each image's view, the nearest first.
    """
    own = torch.arange(len(nearest_images))

    def right(same: Tensor) -> Tensor:
        first = same.int().argmax(1, keepdim=True)
        return (nearest_images.gather(1, first)[:, 0] == own) & same.any(1)

    return _on_halves(nearest_images, right)


def _on_halves(indices: Tensor, right: Callable[[Tensor], Tensor]) -> np.ndarray:
    """`right` says which images are, given which of their neighbours [N, M] are in their half."""
    halves = (torch.from_numpy(division) for division in divisions(len(indices)))
    return torch.stack([right(half[indices] == half[:, None]) for half in halves]).numpy()
