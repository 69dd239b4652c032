"""Spread of figures of nearest neighbours: images are divided into halves at random, and the halves are compared.

The sampling units are the query and the gallery image; where queries are each other's gallery, an image is both, and
stays in one half. Whether the nearest image is right changes at once where an image leaves, so that the jackknife finds
up to twice the true spread, and queries alone find too little. The two halves of a division are independent samples.
The square of their difference is on average twice the variance on one half, and four times that on all images. Where a
figure is higher on fewer images, such as the share of views that are found, its halves scatter less; queries alone then
say more.
"""

import math

import numpy as np

from excb.inference.estimate import LEAST, Estimate
from excb.inference.means import standard_error
from excb.seeding import Purpose, generator

DIVISIONS = 100


def divisions(images: int, *, of: int = 0) -> np.ndarray:
    """Which images are in the first half, [DIVISIONS, images] bool; the same for all figures of equally many images.

    Args:
        images: number of them.
        of: 0 of images that are queries; 1 of a gallery of its own.
    """
    random, first = generator(Purpose.BOOTSTRAP, images, 6, of), np.arange(images) < images // 2
    return np.stack([random.permutation(first) for _ in range(DIVISIONS)])


def halved(value: float, differences: np.ndarray, scores: np.ndarray) -> Estimate:
    """A figure's spread, which is never less than that over its queries alone.

    Args:
        value: the figure, or a difference of two, as a share of 1.
        differences: the figure on the first half minus that on the second, by division.
        scores: of the queries that count, [Q]; or differences of scores.

    Returns:
        An error of NaN with fewer than twice `LEAST` images, or where a half has no figure.
    """
    known, images = differences[~np.isnan(differences)], len(scores)
    if images < 2 * LEAST or not len(known):
        return Estimate(value, float("nan"), 1)
    error = max(np.sqrt(np.square(known).mean() / 4), standard_error(scores))
    return Estimate(value, float(error), 1 / (1 / len(known) + 1 / (images - 1)))


def enough(k: int) -> int:
    """How many nearest images of each query are needed, so that its half holds k of them but for rare cases."""
    return 2 * k + 8 * (math.isqrt(k - 1) + 1)
