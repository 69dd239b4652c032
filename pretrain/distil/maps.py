"""The distance between a student's prediction of a teacher's map and the map, cell by cell: for dense tasks."""

import torch
from torch import Tensor
from torch.nn import functional as F

from excb.exact import exact_products

from .interface import Objective


class MapDistance(Objective):
    """The mean over cells of `features.FeatureDistance`.

    `forward` takes predictions [v, B, D, h, w] and unit targets [v, B, D, h, w] of the student's grid, view by view,
    and the weight of every view [v].
    """

    def forward(self, predicted: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, None]:
        """See `Objective.forward` and the class."""
        if self.settings.distance == "cosine":
            with exact_products(predicted.device):
                distances = 1 - (F.normalize(predicted, dim=2) * targets).sum(2)
        else:
            distances = (predicted - targets * self.width**0.5).square().mean(2)
        return (weights * distances.mean((1, 2, 3))).sum(), None


def on_grid(cells: Tensor, grid: torch.Size) -> Tensor:
    """Maps [B, D, h, w] resampled to a grid of other height and width: averages where it is coarser, else bilinear."""
    height, width = grid
    if cells.shape[-2:] == grid:
        return cells
    if height <= cells.shape[-2] and width <= cells.shape[-1]:
        return F.adaptive_avg_pool2d(cells, (height, width))
    return F.interpolate(cells, (height, width), mode="bilinear", align_corners=False, antialias=True)


OBJECTIVE = MapDistance
