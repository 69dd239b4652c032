"""Blur: out of focus, through frosted glass, of a moving or zooming camera, and Gaussian."""

import numpy as np
from numpy.random import RandomState
from scipy import ndimage

from .motion import blur_along
from .values import bytes_of
from .zoom import zoomed

DISC = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))  # radius, sigma that smooths its edge
GLASS = ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))  # sigma, furthest move, repetitions
MOTION = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))  # radius, sigma
ZOOMS = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))  # end, not reached; step
GAUSSIAN = (1, 2, 3, 4, 6)  # sigma


def defocus_blur(pixels: np.ndarray, severity: int, _draws: RandomState) -> np.ndarray:
    """The mean over a disc."""
    import cv2  # of an extra, as everywhere here

    kernel = _disc(*DISC[severity - 1])
    channels = [cv2.filter2D(channel, -1, kernel) for channel in np.moveaxis(pixels / 255, 2, 0)]
    return bytes_of(np.stack(channels, 2))


def glass_blur(pixels: np.ndarray, severity: int, draws: RandomState) -> np.ndarray:
    """Each pixel, from the lower right corner on, takes the value of one near it; Gaussian blur before and after.

    The authors mean to swap the two pixels, but the second assignment reads what the first has overwritten.
    """
    sigma, furthest, repetitions = GLASS[severity - 1]
    values = (_gaussian(pixels / 255, sigma) * 255).astype(np.uint8)
    height, width = values.shape[:2]
    rows, columns = np.meshgrid(
        np.arange(height - furthest, furthest, -1), np.arange(width - furthest, furthest, -1), indexing="ij"
    )
    for _ in range(repetitions):
        moves = draws.randint(-furthest, furthest, size=(rows.size, 2))
        targets = (rows * width + columns).ravel()
        order = np.arange(height * width).tolist()
        for target, source in zip(
            targets.tolist(), (targets + moves[:, 1] * width + moves[:, 0]).tolist(), strict=True
        ):
            order[target] = order[source]
        values = values.reshape(-1, values.shape[2])[order].reshape(values.shape)
    return bytes_of(_gaussian(values / 255, sigma))


def motion_blur(pixels: np.ndarray, severity: int, draws: RandomState) -> np.ndarray:
    """Move along a line at a random angle."""
    radius, sigma = MOTION[severity - 1]
    return blur_along(pixels, radius, sigma, draws.uniform(-45, 45))


def zoom_blur(pixels: np.ndarray, severity: int, _draws: RandomState) -> np.ndarray:
    """The mean over pictures taken while zooming in; the first one counts twice."""
    factors = np.arange(1, *ZOOMS[severity - 1])
    values = (pixels / 255).astype(np.float32)
    total = np.zeros_like(values)
    for factor in factors:
        total += zoomed(values, factor)
    return bytes_of((values + total) / (len(factors) + 1))


def blur_by_gaussian(pixels: np.ndarray, severity: int, _draws: RandomState) -> np.ndarray:
    """A Gaussian."""
    return bytes_of(_gaussian(pixels / 255, GAUSSIAN[severity - 1]))


def _gaussian(values: np.ndarray, sigma: float) -> np.ndarray:
    """Gaussian blur of each channel, as scikit-image does it: values at the edge continue beyond it."""
    blurred: np.ndarray = ndimage.gaussian_filter(values, (sigma, sigma, 0), mode="nearest")
    return blurred


def _disc(radius: int, smoothing: float) -> np.ndarray:
    """The mean over a disc as a kernel, float32, its edge smoothed."""
    import cv2

    reach = np.arange(-max(8, radius), max(8, radius) + 1)
    disc = (reach[:, None] ** 2 + reach**2 <= radius**2).astype(np.float32)
    side = 3 if radius <= 8 else 5
    kernel: np.ndarray = cv2.GaussianBlur(disc / disc.sum(), (side, side), smoothing)
    return kernel
