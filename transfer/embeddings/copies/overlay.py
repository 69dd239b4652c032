"""Whether two images are one picture: one laid over the other, cropped, resized or mirrored, correlates with it."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import conv2d

from excb.images.picture import visible_rgb

SIDE = 32  # pixels of the small grey picture that the other is laid over
SIDES = tuple(range(SIDE, SIDE * 2 // 3, -1))  # of the other: a crop has at least two thirds of the picture's sides
# Least correlation of the grey values under it. Of 160 photographs (grocery128, ten kinds), 158 crops of 86 % of the
# area pass, saved at quality 60; of as many photographs and the one most like each, 95 % stay below 0.85.
ALIKE = 0.9
PLAIN = 2.0  # standard deviation in grey levels up to which a picture shows too little to be recognised


def small_picture(image: Image.Image | np.ndarray) -> Image.Image:
    """An opened image as `same_picture` takes it: grey, and its aspect ratio lost."""
    return visible_rgb(image).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)


def same_picture(first: Image.Image, second: Image.Image) -> bool:
    """Whether one of two small pictures, mirrored or not, shows what the other or a part of it shows."""
    return correlation(first, second) >= ALIKE


def correlation(first: Image.Image, second: Image.Image) -> float:
    """The highest correlation of two small pictures over all places, sizes and mirror images; -1 of plain ones."""
    wholes = torch.stack([_values(first), _values(second)])
    if float(wholes.std((1, 2)).min()) <= PLAIN:
        return -1.0
    return max(
        _best(whole, _scaled(part, side))
        for either in (wholes, wholes.flip(2))
        for whole, part in ((either[:1], second), (either[1:], first))
        for side in SIDES
    )


def _values(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(image, np.float32))


def _scaled(image: Image.Image, side: int) -> Tensor:
    return _values(image.resize((side, side), Image.Resampling.BILINEAR))


def _best(whole: Tensor, part: Tensor) -> float:
    """The highest correlation of a part [s, s] with any window of a whole [1, S, S]."""
    pixels = part.numel()
    centred = part - part.mean()
    ones = torch.ones_like(part)[None, None]
    shifted = whole[None] - whole.mean()  # near zero: sums of squares lose nothing
    products = conv2d(shifted, centred[None, None])
    sums, squares = conv2d(shifted, ones), conv2d(shifted**2, ones)
    scatter = (squares - sums**2 / pixels).clamp(min=pixels * PLAIN**2) * centred.square().sum().clamp(min=1e-6)
    return float((products / scatter.sqrt()).max())
