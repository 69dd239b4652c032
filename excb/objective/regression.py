"""BYOL's loss: the student predicts the teacher's projections of an image's other views. There are no negatives.

It is an option of ours, not ExCB's: `method.regression` adds it to Eq. 7, `method.clustering=false` trains by it alone.
The loss is that of "Bootstrap Your Own Latent" (Grill et al., NeurIPS 2020, Eq. 2), with local views for the student.
"""

import torch
from torch import Tensor

from excb.exact import exact_products


def byol(predictions: Tensor, targets: Tensor) -> Tensor:
    """The mean of 2 - 2 g.t over the student's and the teacher's views of an image, a view with itself left out.

    Args:
        predictions: unit rows of the student's predictor, [V, B, D], the global views first.
        targets: unit projections of the teacher, [G, B, D], without gradient.

    Returns:
        The mean over this rank's pairs, []; 0 to 4, and 2 where predictions and targets have nothing in common.
    """
    views, globals_ = len(predictions), len(targets)
    with exact_products(predictions.device):
        similarities = torch.einsum("vbd,gbd->vgb", predictions, targets.to(predictions.dtype))
    others = 1 - torch.eye(views, globals_, device=predictions.device, dtype=predictions.dtype)
    pairs = max(1, globals_ * (views - 1))
    return ((2 - 2 * similarities.mean(2)) * others).sum() / pairs
