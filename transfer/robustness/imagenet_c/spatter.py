"""A lens with drops of water or mud on it."""

import numpy as np
from numpy.random import RandomState
from scipy import ndimage

from .values import bytes_of

# Mean and deviation of the liquid, its smoothness, the least that is left, and the water's strength or the sigma of
# the mud's edge; the first three severities are water.
SPATTER = (
    (0.65, 0.3, 4, 0.69, 0.6),
    (0.65, 0.3, 3, 0.68, 0.6),
    (0.65, 0.3, 2, 0.68, 0.5),
    (0.65, 0.3, 1, 0.65, 1.5),
    (0.67, 0.4, 1, 0.65, 1.5),
)
_WATER = np.array((175 / 255, 238 / 255, 238 / 255), np.float32)  # pale turquoise
_MUD = np.array((63 / 255, 42 / 255, 20 / 255), np.float32)  # brown
_RELIEF = np.array(((-2, -1, 0), (-1, 1, 1), (0, 1, 2)))  # light from the upper left


def spatter(pixels: np.ndarray, severity: int, draws: RandomState) -> np.ndarray:
    """Water with highlights at its edges, or opaque mud."""
    mean, deviation, sigma, least, strength = SPATTER[severity - 1]
    values = pixels.astype(np.float32) / 255
    liquid = draws.normal(size=pixels.shape[:2], loc=mean, scale=deviation)
    liquid = ndimage.gaussian_filter(liquid, sigma, mode="nearest")
    liquid[liquid < least] = 0
    if severity <= 3:
        return bytes_of(values + _water(liquid, strength))
    cover = ndimage.gaussian_filter((liquid > least).astype(np.float32), strength, mode="nearest")
    cover[cover < 0.8] = 0
    return bytes_of(values * (1 - cover[..., None]) + _MUD * cover[..., None])


def _water(liquid: np.ndarray, strength: float) -> np.ndarray:
    """Light that drops add to a picture, float32 [H, W, 3]: by the distance from their edges, in relief."""
    import cv2

    drops = (liquid * 255).astype(np.uint8)
    distance = cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5)
    near = cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8)
    relief = cv2.filter2D(cv2.equalizeHist(near), cv2.CV_8U, _RELIEF)
    light = drops * cv2.blur(relief, (3, 3)).astype(np.float32)
    lit: np.ndarray = (light / light.max() * strength)[..., None] * _WATER
    return lit
