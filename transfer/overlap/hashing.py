"""A perceptual hash as a network: 64 bits of an image's low frequencies, and those of its mirror image."""

import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from excb.images.picture import visible_rgb

SIDE, KEPT = 32, 8  # pixels of the small grey image; frequencies kept along each side
BITS = KEPT * KEPT
DECIMALS = 3  # of coefficients in grey levels: what is below is rounding, and plain images have nothing else


class PerceptualHash(nn.Module):
    """pHash (Zauner, 2010): the signs of 8 x 8 low frequencies of a small grey image, relative to their median.

    Bits are -1 and 1, so that the cosine of two hashes is 1 - 2 d / 64 with d their Hamming distance: nearest hashes
    are found as nearest features are. The discrete cosine transform of a mirrored row is that of the row with every
    second sign changed, so that both hashes come from one pass.
    """

    def __init__(self) -> None:
        super().__init__()
        frequencies, places = np.mgrid[:KEPT, :SIDE]
        basis = np.cos(math.pi * frequencies * (2 * places + 1) / (2 * SIDE)) / SIDE
        self.register_buffer("basis", torch.from_numpy(basis), persistent=False)  # float64 [8, 32]
        self.register_buffer("mirror", torch.tensor([1.0, -1.0]).repeat(KEPT // 2), persistent=False)
        self.basis: Tensor
        self.mirror: Tensor

    @staticmethod
    def transform(image: Image.Image | np.ndarray) -> Tensor:
        """An image, as people see it, as grey levels [3, 32, 32] of three equal channels, whatever its shape."""
        small = visible_rgb(image).convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        return torch.from_numpy(np.array(small, np.float32)).expand(3, SIDE, SIDE)

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, 32, 32] -> [B, 128] of -1 and 1: the hash, and that of the mirrored image."""
        low = self.basis @ images[:, 0].double() @ self.basis.T
        return torch.cat([_signs(low), _signs(low * self.mirror)], 1).float()


def _signs(low: Tensor) -> Tensor:
    values = low.flatten(1).round(decimals=DECIMALS)
    middle = values.sort(1).values[:, BITS // 2 - 1 : BITS // 2 + 1].mean(1, keepdim=True)
    return torch.where(values > middle, 1.0, -1.0)


def of_bits(bits: float) -> float:
    """The cosine of hashes that differ in so many bits."""
    return 1 - 2 * bits / BITS


def bits_of(cosine: float) -> int:
    """The bits in which hashes of this cosine differ."""
    return round((1 - cosine) * BITS / 2)
