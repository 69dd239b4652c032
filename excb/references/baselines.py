"""Features that nothing is fitted for: raw pixels and colour histograms; and the names of all references."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from excb.images.image_set import Images
from excb.networks.features import Features, Inputs, extract
from excb.networks.preprocessing import Preprocessing
from excb.references import patches

UNTRAINED = "untrained"
PIXELS = Preprocessing(32, 32)  # raw pixels are compared at 32 x 32
BINS = 4  # of the colour histogram, per channel


def colour_histogram(image: Image.Image) -> Tensor:
    """Square roots of the counts of BINS^3 colours, compared by cosine: a baseline that sees nothing but colour."""
    pixels = torch.from_numpy(np.array(image)).long().flatten(0, 1) * BINS // 256
    return torch.bincount(pixels @ torch.tensor([BINS * BINS, BINS, 1]), minlength=BINS**3).float().sqrt()


def pixel_row(image: Image.Image) -> Tensor:
    """The image at 32 x 32, normalised, as one row [3072]."""
    return PIXELS(image).flatten()


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
    """Raw pixels of a network's inputs, normalised as they are, at 32 x 32: [B, 3, H, W] -> [B, 3072]."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Rows of pixels."""
        size = (PIXELS.crop, PIXELS.crop)
        return F.interpolate(inputs, size, mode="bilinear", antialias=True, align_corners=False).flatten(1)


class HistogramRows(nn.Module):
    """Colour histograms of a network's inputs, [B, 3, H, W] -> [B, BINS^3], as `colour_histogram` of their images.

    Args:
        mean: of the channels, which the inputs were normalised with.
        std: standard deviations, likewise.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Rows of square roots of counts."""
        levels = (255 * (inputs * self.std + self.mean)).round().clamp(0, 255).long() * BINS // 256
        colours = ((levels[:, 0] * BINS + levels[:, 1]) * BINS + levels[:, 2]).flatten(1)
        counts = inputs.new_zeros(len(inputs), BINS**3)
        return counts.scatter_add_(1, colours, torch.ones_like(colours, dtype=counts.dtype)).sqrt()
