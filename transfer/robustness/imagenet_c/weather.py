"""Weather: snow, frost, fog and bright light."""

import numpy as np
from numpy.random import RandomState
from skimage.color import hsv2rgb, rgb2hsv

from .frost import cut_of_frost
from .motion import blur_along
from .plasma import plasma
from .values import bytes_of
from .zoom import zoomed

# Mean and deviation of the flakes, zoom into them, the least that is left, radius and sigma of their fall, and the
# picture's share beside its whitened self.
SNOW = (
    (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
FROST = ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))  # factors of the picture and of the frost
FOG = ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))  # amount, decay of its structure
BRIGHTNESS = (0.1, 0.2, 0.3, 0.4, 0.5)  # added to the value of HSV
SMALLEST_MAP = 256  # side of the map of fog in pixels


def snow(pixels: np.ndarray, severity: int, draws: RandomState) -> np.ndarray:
    """Falling flakes, twice, over a whitened picture."""
    import cv2

    mean, deviation, zoom, least, radius, sigma, share = SNOW[severity - 1]
    values = (pixels.astype(np.float32)) / 255
    flakes = zoomed(draws.normal(size=pixels.shape[:2], loc=mean, scale=deviation)[..., None], zoom)[..., 0]
    flakes[flakes < least] = 0
    falling = (flakes.clip(0, 1) * 255).astype(np.uint8)
    fallen = blur_along(falling, int(radius), sigma, draws.uniform(-135, -45))[..., None] / 255
    grey = cv2.cvtColor(values, cv2.COLOR_RGB2GRAY)[..., None]
    whitened = share * values + (1 - share) * np.maximum(values, grey * 1.5 + 0.5)
    return bytes_of(whitened + fallen + np.rot90(fallen, k=2))


def frost(pixels: np.ndarray, severity: int, draws: RandomState) -> np.ndarray:
    """A photograph of frost over the picture."""
    picture, ice = FROST[severity - 1]
    return (picture * pixels + ice * cut_of_frost(pixels.shape[0], pixels.shape[1], draws)).clip(0, 255)


def fog(pixels: np.ndarray, severity: int, draws: RandomState) -> np.ndarray:
    """Plasma added to the picture, and contrast lost by as much."""
    amount, decay = FOG[severity - 1]
    values = pixels / 255
    height, width = values.shape[:2]
    side = max(SMALLEST_MAP, 1 << (max(height, width) - 1).bit_length())
    brightest = values.max()
    foggy = values + amount * plasma(side, decay, draws)[:height, :width, None]
    return bytes_of(foggy * brightest / (brightest + amount))


def brightness(pixels: np.ndarray, severity: int, _draws: RandomState) -> np.ndarray:
    """More light: a higher value in HSV."""
    hsv = rgb2hsv(pixels / 255)
    hsv[..., 2] = (hsv[..., 2] + BRIGHTNESS[severity - 1]).clip(0, 1)
    return bytes_of(hsv2rgb(hsv))
