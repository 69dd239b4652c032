"""A network whose passes are in half precision."""

import torch
from torch import Tensor, nn


class HalfPrecision(nn.Module):
    """Passes images through a network under autocast to bfloat16, and returns float32."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """The network's output for images [B, C, H, W]."""
        with torch.autocast(images.device.type, torch.bfloat16):
            rows: Tensor = self.network(images)
        return rows.float()
