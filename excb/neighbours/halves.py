"""Figures of images that are each other's neighbours, on random halves of them: their spread follows.

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
    """Leave-one-out accuracy of the weighted vote, on the first half minus on the second, by division.

    Args:
        neighbours: M others of each image, of which the first k in its half vote.
        labels: [N] classes.
        k: neighbours that vote.
        temperature: divisor of the similarities.
        classes: their number.

    Returns:
        [P] shares of 1; NaN where a half is empty.
    """
    similarities = neighbours.similarities
    weights = ((similarities - similarities[:, :1]) / temperature).exp().float()
    voted, scores = labels[neighbours.indices], weights.new_zeros(len(labels), classes)

    def right(same: Tensor) -> Tensor:
        counted = torch.where(same & (same.cumsum(1, dtype=torch.int32) <= k), weights, 0.0)
        return scores.zero_().scatter_add_(1, voted, counted).argmax(1) == labels

    return _differences(neighbours.indices, right)


def retrieval_on_halves(nearest_images: Tensor) -> np.ndarray:
    """How often the nearest image of a view is its own, on the first half minus on the second, by division.

    Args:
        nearest_images: [N, M] the images nearest to each image's view, the nearest first.
    """
    own = torch.arange(len(nearest_images))

    def right(same: Tensor) -> Tensor:
        first = same.int().argmax(1, keepdim=True)
        return (nearest_images.gather(1, first)[:, 0] == own) & same.any(1)

    return _differences(nearest_images, right)


def _differences(indices: Tensor, right: Callable[[Tensor], Tensor]) -> np.ndarray:
    """`right` says which images are, given which of their neighbours [N, M] are in their half."""
    differences = []
    for division in divisions(len(indices)):
        half = torch.from_numpy(division)
        hits = right(half[indices] == half[:, None]).double()
        differences.append(float(hits[half].mean() - hits[~half].mean()))
    return np.array(differences)
