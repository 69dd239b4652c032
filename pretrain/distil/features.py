"""The distance between a student's prediction of a teacher's features and the features."""

import torch
from torch import Tensor
from torch.nn import functional as F

from excb.exact import exact_products

from .interface import Objective


class FeatureDistance(Objective):
    """1 - cosine, or the squared error of standardised features; AM-RADIO (Ranzinger et al., CVPR 2024) compares both.

    A unit row has a mean square of 1 / D. The squared error is that of sqrt(D) times the target, so that a prediction
    of zero has an error of 1, as one with a cosine of zero has.
    """

    def forward(self, predicted: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, None]:
        """See `Objective.forward`."""
        if self.settings.distance == "cosine":
            predicted = F.normalize(predicted, dim=-1)
            with exact_products(predicted.device):
                distances = 1 - torch.einsum("tbd,vbd->tvb", targets, predicted)
        else:
            scaled = targets * self.width**0.5
            distances = (predicted[None] - scaled[:, None]).square().mean(-1)
        return (weights * distances.mean(2)).sum(), None


OBJECTIVE = FeatureDistance
