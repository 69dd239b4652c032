"""Noise on every value of every pixel: Gaussian, Poisson, salt and pepper, and noise in proportion to the value."""

import numpy as np
from numpy.random import RandomState

from .values import bytes_of

GAUSSIAN = (0.08, 0.12, 0.18, 0.26, 0.38)  # standard deviation, of values between 0 and 1
PHOTONS = (60, 25, 12, 5, 3)  # expected at the value 1
FLIPPED = (0.03, 0.06, 0.09, 0.17, 0.27)  # share of values that become 0 or 1
SPECKLE = (0.15, 0.2, 0.35, 0.45, 0.6)  # standard deviation, of a value of 1


def gaussian_noise(pixels: np.ndarray, severity: int, draws: RandomState) -> np.ndarray:
    """Add noise of one strength everywhere."""
    noisy = pixels / 255 + draws.normal(size=pixels.shape, scale=GAUSSIAN[severity - 1])
    return bytes_of(noisy)


def shot_noise(pixels: np.ndarray, severity: int, draws: RandomState) -> np.ndarray:
    """Count photons: a Poisson variable for each value."""
    photons = PHOTONS[severity - 1]
    return bytes_of(draws.poisson(pixels / 255 * photons) / photons)


def impulse_noise(pixels: np.ndarray, severity: int, draws: RandomState) -> np.ndarray:
    """Set a share of the values to 0 or 1, in equal parts. Colours of one pixel change independently.

    The draws are those of scikit-image before 0.19, which ImageNet-C's authors used.
    """
    flipped = draws.random_sample(pixels.shape) < FLIPPED[severity - 1]
    salt = draws.random_sample(pixels.shape) < 0.5
    return np.where(flipped, 255.0 * salt, pixels / 255 * 255)


def speckle_noise(pixels: np.ndarray, severity: int, draws: RandomState) -> np.ndarray:
    """Add noise in proportion to the value."""
    values = pixels / 255
    return bytes_of(values + values * draws.normal(size=pixels.shape, scale=SPECKLE[severity - 1]))
