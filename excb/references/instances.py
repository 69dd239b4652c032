"""Retrieval of instances: does an augmented view of an image find that image among all? It needs no labels."""

import torch
from torch import Tensor

from excb.neighbours.nearest import nearest


def retrieved(images: Tensor, views: Tensor) -> Tensor:
    """Whether the image nearest to each view, by cosine, is its own; chance is 1 / N.

    Args:
        images: [N, D] features of the images.
        views: [N, D] features of a view of each, in the same order.

    Returns:
        [N] bool.
    """
    return nearest(images, views, 1).indices[:, 0] == torch.arange(len(images))
