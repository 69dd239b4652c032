"""The table of corruptions: one function each, of pixels, severity and random numbers."""

from collections.abc import Callable

import numpy as np
from numpy.random import RandomState

from . import blur, digital, noise, spatter, weather
from .digital import as_jpeg

Corruption = Callable[[np.ndarray, int, RandomState], np.ndarray]

CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.blur_by_gaussian,
    "spatter": spatter.spatter,
    "saturate": digital.saturate,
}
OPENCV = ("defocus_blur", "snow", "frost", "elastic_transform", "spatter")  # those that need it
STORED = 85  # quality of the JPEGs that ImageNet-C consists of


def corrupted(pixels: np.ndarray, name: str, severity: int, seed: int, *, stored: bool = False) -> np.ndarray:
    """One corrupted image, uint8 [N, N, 3].

    Args:
        pixels: uint8 [N, N, 3]. Severities are in its pixels: ImageNet-C's images have N = 224.
        name: of the corruption.
        severity: 1 to 5.
        seed: of NumPy's `RandomState`, 0 to 2^32 - 1; the draws are those of the authors' code after `np.random.seed`.
        stored: as the JPEG of quality 85 that ImageNet-C has of it.
    """
    values = CORRUPTIONS[name](pixels, severity, RandomState(seed)).astype(np.uint8)
    return as_jpeg(values, STORED) if stored else values
