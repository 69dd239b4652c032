"""A network of three blocks, of which one has the class in one patch, and images for it."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from excb.networks.preprocessing import Preprocessing

CLASSES = ("ant", "bee", "cat", "dog")
SIDE, GRID = 32, 4
BLOCK = 2  # the one with the class, counted from 1
CHANNELS = 8


def write_planted(folder: Path, *, each: int, seed: int) -> Path:
    """Write images of 4 x 4 patches. Green says a class; blue marks the one patch of an image whose green is right."""
    random = np.random.default_rng(seed)
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            cells = np.zeros((GRID, GRID, 3), np.uint8)
            cells[..., 0] = random.integers(256, size=(GRID, GRID))
            cells[..., 1] = 60 * random.integers(len(CLASSES), size=(GRID, GRID))
            row, column = random.integers(GRID, size=2)
            cells[row, column, 1:] = 60 * label, 255
            image = cells.repeat(SIDE // GRID, 0).repeat(SIDE // GRID, 1)
            Image.fromarray(image).save(folder / name / f"{number}.png")
    return folder


class Planted(nn.Module):
    """Blocks 1 and 3 see red only, which says nothing; block 2 sees green and blue. The output is that of block 3."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = Preprocessing(SIDE, SIDE, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
        self.num_features = CHANNELS
        self.norm = nn.Identity()
        self.feature_info = [
            {"num_chs": CHANNELS, "reduction": SIDE // GRID, "module": f"blocks.{number}"} for number in range(3)
        ]
        self.passes = 0  # images seen
        self.scale = nn.Parameter(torch.ones(()))

    def forward_intermediates(
        self, images: Tensor, *, indices: list[int], norm: bool, output_fmt: str
    ) -> tuple[Tensor, list[Tensor]]:
        """See timm's."""
        del norm, output_fmt
        self.passes += len(images)
        cells = F.avg_pool2d(images, SIDE // GRID) * 255
        said = F.one_hot((cells[:, 1] / 60).round().long(), len(CLASSES)).movedim(-1, 1)
        signal = F.pad(torch.cat([said, cells[:, 2:] / 255], 1), (0, 0, 0, 0, 0, CHANNELS - len(CLASSES) - 1))
        noise = torch.cat([torch.sin(cells[:, :1] * power) for power in range(1, CHANNELS + 1)], 1)
        maps = [noise, signal.to(noise) * self.scale, noise]
        return noise, [maps[index] for index in indices]

    def forward_head(self, final: Tensor) -> Tensor:
        """The mean of the map."""
        return final.mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """The features that a user sees."""
        return self.forward_head(self.forward_intermediates(images, indices=[2], norm=True, output_fmt="NCHW")[0])
