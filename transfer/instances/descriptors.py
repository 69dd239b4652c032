"""Descriptors of whole images or crops: how an image is resized, what is pooled, and at which scales."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from PIL.Image import Image
from torch import Tensor, nn
from torch.nn import functional as F

from excb.errors import UserError
from excb.features.extraction import Extraction
from excb.hub.backbone import Backbone
from excb.images.picture import Picture, as_channels
from excb.networks.outputs import FeatureMap
from excb.networks.preprocessing import Preprocessing
from excb.references.baselines import PIXELS, PixelRows

Pooling = Literal["own", "gem", "both", "pixels"]
_SMALLEST = 1e-6  # of an activation, before powers are taken, as in GeM's and DINO's code


@dataclass(frozen=True, kw_only=True)
class WholeImage(Preprocessing):
    """Preprocessing that keeps all of an image. `resize` and `crop` are both the side in pixels that it is resized to.

    "resize" makes it a square, which changes its proportions. "longer" shrinks it until its longer side has this many
    pixels, and leaves smaller images as they are but for rounding.
    """

    mode: Literal["resize", "longer"]
    multiple: int = 1  # of which "longer" makes both sides: a ViT's patches

    def __call__(self, image: Picture) -> Tensor:
        """Turn an image into a network's input, float32 [3, H, W]. Raises UserError as `Preprocessing`."""
        from torchvision.transforms import functional as transforms

        picture = as_channels(image, self.pixels)
        assert isinstance(picture, Image)  # three channels: `require_colours`
        size = (self.crop, self.crop) if self.mode == "resize" else self._shrunk(picture.size)
        resized = picture if size == picture.size else picture.resize(size, self.resampling)
        normalised: Tensor = transforms.normalize(transforms.to_tensor(resized), list(self.mean), list(self.std))
        return normalised

    def _shrunk(self, size: tuple[int, int]) -> tuple[int, int]:
        shrink = min(1.0, self.crop / max(size))
        return rounded(size[0] * shrink, self.multiple), rounded(size[1] * shrink, self.multiple)


def rounded(side: float, multiple: int) -> int:
    """The multiple nearest to a side, at least one."""
    return max(1, round(side / multiple)) * multiple


def patch_side(network: nn.Module) -> int:
    """The side in pixels that a plain ViT's inputs are multiples of; 1 of other networks."""
    try:
        return FeatureMap(network).patch or 1
    except UserError:  # it gives no map
        return 1


@dataclass(frozen=True)
class DescriptorOptions:
    """The description of an image by a vector."""

    # The network's own features, GeM of its map, both side by side, or raw pixels instead of a network.
    pooling: Pooling = "own"
    power: float = 3.0  # p of GeM: 1 is the mean, and large p approach the maximum
    scales: tuple[float, ...] = field(default=(1.0,))  # of the input; descriptors of unit length are averaged over them

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; without the power where it has no effect."""
        values = asdict(self) | {"scales": list(self.scales)}
        return values if self.pooling in ("gem", "both") else {n: v for n, v in values.items() if n != "power"}


class GeM(nn.Module):
    """Generalised mean over a map (Radenovic et al., 2018): [B, 3, H, W] -> [B, D], (mean of x^p)^(1 / p).

    Args:
        network: gives a map.
        power: p.

    Raises:
        UserError: the network gives no map.
    """

    def __init__(self, network: nn.Module, power: float) -> None:
        super().__init__()
        self.map, self._power = FeatureMap(network), power
        self.width = self.map.width

    def forward(self, images: Tensor) -> Tensor:
        """Pooled features of normalised images."""
        maps: Tensor = self.map(images)
        return maps.clamp(min=_SMALLEST).pow(self._power).mean((2, 3)).pow(1 / self._power)


class Descriptors(nn.Module):
    """Descriptors of normalised images: [B, 3, H, W] -> [B, width].

    Raises:
        UserError: the backbone gives no map, and GeM was asked for.
    """

    def __init__(self, backbone: Backbone, descriptor: DescriptorOptions) -> None:
        super().__init__()
        own, gem = descriptor.pooling in ("own", "both"), descriptor.pooling in ("gem", "both")
        readers: list[Backbone | GeM] = [backbone] if own else []
        readers += [GeM(backbone.network, descriptor.power)] if gem else []
        self.readers, self._scales = nn.ModuleList(readers or [PixelRows()]), descriptor.scales
        self._multiple = patch_side(backbone.network)
        self.width: int = sum(reader.width for reader in readers) if readers else 3 * PIXELS.crop**2

    def forward(self, images: Tensor) -> Tensor:
        """Descriptors; of unit length per scale where there are several."""
        if self._scales == (1.0,):
            return self._at(images)
        rows = [F.normalize(self._at(self._scaled(images, scale)), dim=1) for scale in self._scales]
        return torch.stack(rows).mean(0)

    def _at(self, images: Tensor) -> Tensor:
        return torch.cat([reader(images) for reader in self.readers], dim=1)

    def _scaled(self, images: Tensor, scale: float) -> Tensor:
        if scale == 1:
            return images
        if self._multiple == 1:  # as the authors of GeM do: sizes are rounded down, positions are not
            return F.interpolate(images, scale_factor=scale, mode="bilinear", align_corners=False)
        size = [rounded(side * scale, self._multiple) for side in images.shape[-2:]]
        return F.interpolate(images, size, mode="bilinear", align_corners=False)


@dataclass(frozen=True, kw_only=True)
class DescriptorExtraction(Extraction):
    """The computation of the descriptors of a set."""

    descriptor: DescriptorOptions

    @property
    def reader(self) -> nn.Module:
        """See `Extraction.reader`."""
        return Descriptors(self.backbone, self.descriptor)

    def description(self) -> dict[str, Any]:
        """See `Extraction.description`."""
        return super().description() | {"descriptor": self.descriptor.to_dict()}
