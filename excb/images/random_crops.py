"""RandomResizedCrop: the box of a random crop, from uniform numbers drawn in advance or from a generator.

The distribution is that of torchvision's transform. Pretraining draws a fixed count of numbers for each view
(`crop_box`), the transfer protocols as many as the box needs (`draw_crop_box`).
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

ATTEMPTS = 10  # as many as torchvision makes before it crops the centre
BOX_DRAWS = 2 * ATTEMPTS + 2  # uniform numbers that `crop_box` takes

Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels


def crop_box(
    size: tuple[int, int], scales: tuple[float, float], ratios: tuple[float, float], draws: Sequence[float]
) -> Box:
    """A box as a function of uniform numbers.

    Args:
        size: width and height of the image.
        scales: smallest and largest share of the image's area.
        ratios: smallest and largest width by height; drawn uniformly in the logarithm.
        draws: `BOX_DRAWS` numbers in [0, 1): two for each attempt, then two for the corner.
    """
    attempts, last = zip(draws[:-2:2], draws[1:-2:2], strict=True), draws[-2:]
    return _box(size, scales, ratios, attempts, lambda w, h: (math.floor(last[0] * w), math.floor(last[1] * h)))


def draw_crop_box(
    size: tuple[int, int], scales: tuple[float, float], ratios: tuple[float, float], random: np.random.Generator
) -> Box:
    """A box as `crop_box` makes it, from a generator: two uniform numbers an attempt, two integers for the corner."""
    attempts = ((random.random(), random.random()) for _ in range(ATTEMPTS))
    return _box(size, scales, ratios, attempts, lambda w, h: (int(random.integers(w)), int(random.integers(h))))


def _box(
    size: tuple[int, int],
    scales: tuple[float, float],
    ratios: tuple[float, float],
    attempts: Iterable[tuple[float, float]],
    corner: Callable[[int, int], tuple[int, int]],
) -> Box:
    """The first attempt that fits the image; if none does, the largest central box of an allowed ratio."""
    width, height = size
    low, high = math.log(ratios[0]), math.log(ratios[1])
    for share, shape in attempts:
        area = width * height * (scales[0] + (scales[1] - scales[0]) * share)
        ratio = math.exp(low + (high - low) * shape)
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = corner(width - w + 1, height - h + 1)
            return left, top, left + w, top + h
    w, h = width, height
    if width / height < ratios[0]:
        h = max(1, round(width / ratios[0]))
    elif width / height > ratios[1]:
        w = max(1, round(height * ratios[1]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
