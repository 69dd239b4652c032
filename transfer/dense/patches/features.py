"""Maps of frozen backbones as rows of patches, computed once and kept like all other features."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from excb.features.cache import CachedFeatures
from excb.features.extraction import Extraction
from excb.networks.backbone import evaluating
from excb.networks.outputs import FeatureMap

PIXELS = 4  # raw pixels of a patch are compared at 4 x 4


@dataclass(frozen=True)
class Grid:
    """The patches of a view."""

    height: int  # in patches
    width: int
    channels: int  # D of a patch's features
    stride: int  # pixels of the network's input from patch to patch

    @property
    def patches(self) -> int:
        """P, the patches of a view."""
        return self.height * self.width


class PatchReader(nn.Module):
    """A network's map as rows: [B, 3, S, S] -> [B, P x D], patch by patch.

    Args:
        network: gives maps.
        stride: as `FeatureMap` has it.

    Raises:
        UserError: the network gives no such map.
    """

    def __init__(self, network: nn.Module, stride: int | None) -> None:
        super().__init__()
        self.map = FeatureMap(network, stride)

    def forward(self, images: Tensor) -> Tensor:
        """Rows of normalised images."""
        maps: Tensor = self.map(images)
        return maps.permute(0, 2, 3, 1).flatten(1)

    def grid(self, side: int) -> Grid:
        """The patches of square images of `side` pixels, where the network is."""
        parameter = next(self.parameters(), torch.empty(0))
        with evaluating(self.map), torch.no_grad():
            inputs = torch.zeros(1, 3, side, side, device=parameter.device, dtype=parameter.dtype)
            channels, height, width = self.map(inputs).shape[1:]
        return Grid(height, width, channels, self.map.strides[0])


class PixelReader(nn.Module):
    """The pixels of every patch at 4 x 4: [B, 3, S, S] -> [B, P x 48]. What a map must beat."""

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self._size = (PIXELS * grid.height, PIXELS * grid.width)

    def forward(self, images: Tensor) -> Tensor:
        """Rows of normalised images."""
        small = F.interpolate(images, self._size, mode="bilinear", antialias=True, align_corners=False)
        cells = small.unfold(2, PIXELS, PIXELS).unfold(3, PIXELS, PIXELS)  # [B, 3, h, w, 4, 4]
        return cells.permute(0, 2, 3, 1, 4, 5).flatten(1)


@dataclass(frozen=True, kw_only=True)
class PatchExtraction(Extraction):
    """The computation of the rows of a set of views."""

    grid: Grid
    pixels: bool = False  # raw pixels instead of the network's map

    @property
    def reader(self) -> nn.Module:
        """See `Extraction.reader`."""
        return PixelReader(self.grid) if self.pixels else PatchReader(self.backbone.network, self.grid.stride)

    @property
    def width(self) -> int:
        """P x D."""
        return self.grid.patches * self.grid.channels

    def description(self) -> dict[str, Any]:
        """See `Extraction.description`."""
        return super().description() | {"patches": {"stride": self.grid.stride, "pixels": self.pixels}}


def pixel_grid(grid: Grid) -> Grid:
    """The same patches with raw pixels."""
    return replace(grid, channels=3 * PIXELS**2)


class Patches:
    """Rows [M, D] of chosen patches of a set, read when they are needed.

    Args:
        stored: [V, P x D], the rows of all views.
        grid: of a view.
        chosen: [M] int64, numbers of patches, ascending: patch p of view v has the number v P + p.
    """

    def __init__(self, stored: CachedFeatures, grid: Grid, chosen: np.ndarray) -> None:
        self._stored, self._grid, self.chosen = stored, grid, chosen
        self.width = grid.channels

    def __len__(self) -> int:
        """M."""
        return len(self.chosen)

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows [stop - start, D]."""
        numbers = self.chosen[start:stop]
        if len(numbers) == 0:
            return torch.empty(0, self.width)
        views, firsts = np.unique(numbers // self._grid.patches, return_index=True)
        parts = []
        for view, own in zip(views.tolist(), np.split(numbers, firsts[1:]), strict=True):
            parts.append(self.view(view)[torch.from_numpy(own - view * self._grid.patches)])
        return torch.cat(parts)

    def view(self, view: int) -> Tensor:
        """The rows [P, D] of a view, whether chosen or not; they may share the cache's file."""
        return self._stored.rows(view, view + 1).view(self._grid.patches, self.width)

    @cached_property
    def whole(self) -> Tensor:
        """All rows in memory."""
        return self.rows(0, len(self))
