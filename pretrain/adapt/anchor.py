"""The anchor: a frozen copy of the backbone at the start, and the distance of the student's features from its own."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Anchor(nn.Module):
    """A frozen copy of a backbone, in eval mode: BatchNorm uses the statistics that it came with.

    Args:
        backbone: is copied.
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = deepcopy(backbone).requires_grad_(False).eval()

    def distance(self, features: Tensor, global_views: Tensor) -> Tensor:
        """The mean of 1 - cosine between a network's features of the global views and those of the start, [].

        Args:
            features: [V * B, D], view by view, of which those of global views come first; gradients flow into them.
            global_views: [G, B, 3, H, W].
        """
        with torch.no_grad():
            start = self.backbone(global_views.flatten(0, 1))
        now = features[: len(start)]
        if now.dtype != torch.float64:  # as every similarity, never in half precision
            now, start = now.float(), start.float()
        with torch.autocast(now.device.type, enabled=False):
            return 1 - F.cosine_similarity(now, start, dim=1).mean()
