"""Features that nothing is fitted for: raw pixels and colour histograms; and the names of all references."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from excb.images.image_set import Images
from excb.images.pixels import Pixels
from excb.networks.features import Features, Inputs, extract
from excb.networks.preprocessing import Preprocessing
from excb.references import patches

UNTRAINED = "untrained"
PIXELS = Preprocessing(32, 32)  # raw pixels are compared at 32 x 32
BINS = 4  # of the colour histogram, per channel
RGB, LEVELS = 3, 16  # channels of colours; levels of each channel of images of others


def colour_histogram(image: Image.Image | np.ndarray) -> Tensor:
    """Square roots of the counts of BINS^3 colours, compared by cosine: a baseline that sees nothing but colour.

    Of an image [H, W, C] of other than three channels, the counts of LEVELS levels of each channel.
    """
    return _counted(torch.from_numpy(np.array(image)).flatten(0, 1).T[None])[0]


def pixel_row(image: Image.Image | np.ndarray) -> Tensor:
    """The image at 32 x 32, normalised, as one row [C x 1024]."""
    if isinstance(image, np.ndarray) and (channels := image.shape[-1]) != RGB:
        return replace(PIXELS, mean=(0.5,) * channels, std=(0.25,) * channels, pixels=Pixels(channels))(image).flatten()
    return PIXELS(image).flatten()


def _counted(pixels: Tensor) -> Tensor:
    """Rows of square roots of counts, of 8-bit pixels [B, C, N]."""
    batch, channels = pixels.shape[:2]
    if channels == RGB:
        levels = pixels.long() * BINS // 256
        places, number = (levels[:, 0] * BINS + levels[:, 1]) * BINS + levels[:, 2], BINS**3
    else:
        own = torch.arange(channels, device=pixels.device).view(-1, 1) * LEVELS
        places, number = (pixels.long() * LEVELS // 256 + own).flatten(1), channels * LEVELS
    counts = torch.zeros(batch, number, device=pixels.device)
    return counts.scatter_add_(1, places, torch.ones_like(places, dtype=counts.dtype)).sqrt()


# Features that no network makes: title, and image -> row.
WITHOUT_NETWORK: dict[str, tuple[str, Callable[[Image.Image], Tensor]]] = {
    "pixels": ("raw pixels", pixel_row),
    "colour_histogram": ("colour histogram", colour_histogram),
}


# All references, by the name that reports and studies have.
REFERENCES = {
    UNTRAINED: "untrained network",
    **{name: title for name, (title, _) in WITHOUT_NETWORK.items()},
    patches.NAME: patches.TITLE,
}


def features_without_network(name: str, images: Images, *, workers: int = 0) -> Features:
    """The features of `WITHOUT_NETWORK` of that name, for every readable image."""
    return extract(nn.Identity(), Inputs(images, WITHOUT_NETWORK[name][1]), batch=256, workers=workers)


def rows_of_inputs(name: str, preprocessing: Preprocessing) -> nn.Module:
    """The module that makes the features of `WITHOUT_NETWORK` of that name from a network's inputs.

    Args:
        name: a key of `WITHOUT_NETWORK`.
        preprocessing: what made the inputs.
    """
    return PixelRows() if name == "pixels" else HistogramRows(preprocessing.mean, preprocessing.std)


class PixelRows(nn.Module):
    """Raw pixels of a network's inputs, normalised as they are, at 32 x 32: [B, C, H, W] -> [B, C x 1024]."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Rows of pixels."""
        size = (PIXELS.crop, PIXELS.crop)
        return F.interpolate(inputs, size, mode="bilinear", antialias=True, align_corners=False).flatten(1)


class HistogramRows(nn.Module):
    """Colour histograms of a network's inputs, [B, C, H, W] -> [B, D], as `colour_histogram` of their images.

    Args:
        mean: of the channels, which the inputs were normalised with.
        std: standard deviations, likewise.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Rows of square roots of counts."""
        pixels = (255 * (inputs * self.std + self.mean)).round().clamp(0, 255)
        return _counted(pixels.flatten(2)).to(inputs.dtype)
