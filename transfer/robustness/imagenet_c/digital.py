"""Contrast, colour, resolution, compression and stretching."""

from io import BytesIO

import numpy as np
from numpy.random import RandomState
from PIL import Image
from scipy import ndimage
from skimage.color import hsv2rgb, rgb2hsv

from .values import bytes_of

CONTRAST = (0.4, 0.3, 0.2, 0.1, 0.05)  # factor on distances from the mean
JPEG = (25, 18, 15, 10, 7)  # quality
PIXELS = (0.6, 0.5, 0.4, 0.3, 0.25)  # share of pixels that is left on each side
SATURATION = ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))  # factor and summand
# Length and smoothness of displacements and largest move of the corners, in pixels: the authors' 244 stands for 224.
ELASTIC = (
    (244 * 2, 244 * 0.7, 244 * 0.1),
    (244 * 2, 244 * 0.08, 244 * 0.2),
    (244 * 0.05, 244 * 0.01, 244 * 0.02),
    (244 * 0.07, 244 * 0.01, 244 * 0.02),
    (244 * 0.12, 244 * 0.01, 244 * 0.02),
)


def contrast(pixels: np.ndarray, severity: int, _draws: RandomState) -> np.ndarray:
    """Move values towards the mean of their channel."""
    values = pixels / 255
    mean = values.mean((0, 1), keepdims=True)
    return bytes_of((values - mean) * CONTRAST[severity - 1] + mean)


def saturate(pixels: np.ndarray, severity: int, _draws: RandomState) -> np.ndarray:
    """Less or more saturation in HSV."""
    factor, summand = SATURATION[severity - 1]
    hsv = rgb2hsv(pixels / 255)
    hsv[..., 1] = (hsv[..., 1] * factor + summand).clip(0, 1)
    return bytes_of(hsv2rgb(hsv))


def pixelate(pixels: np.ndarray, severity: int, _draws: RandomState) -> np.ndarray:
    """Means over boxes."""
    image, share = Image.fromarray(pixels), PIXELS[severity - 1]
    small = image.resize((int(image.width * share), int(image.height * share)), Image.Resampling.BOX)
    return np.asarray(small.resize(image.size, Image.Resampling.BOX))


def jpeg_compression(pixels: np.ndarray, severity: int, _draws: RandomState) -> np.ndarray:
    """A JPEG of low quality."""
    return as_jpeg(pixels, JPEG[severity - 1])


def as_jpeg(pixels: np.ndarray, quality: int) -> np.ndarray:
    """Pixels as a JPEG holds them."""
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def elastic_transform(pixels: np.ndarray, severity: int, draws: RandomState) -> np.ndarray:
    """An affine map that moves three points at random, and a smooth random displacement of every pixel."""
    import cv2

    length, smoothness, move = ELASTIC[severity - 1]
    values = pixels.astype(np.float32) / 255
    height, width = values.shape[:2]
    middle, reach = np.array((height // 2, width // 2), np.float32), min(height, width) // 3
    points = np.array((middle + reach, (middle[0] + reach, middle[1] - reach), middle - reach), np.float32)
    moved = points + draws.uniform(-move, move, size=points.shape).astype(np.float32)
    affine = cv2.getAffineTransform(points, moved)
    values = cv2.warpAffine(values, affine, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    across, down = (
        (_smooth(draws.uniform(-1, 1, size=(height, width)), smoothness) * length).astype(np.float32) for _ in range(2)
    )
    rows, columns = np.mgrid[:height, :width]
    places = (rows + down, columns + across)
    stretched = [ndimage.map_coordinates(values[..., channel], places, order=1, mode="reflect") for channel in range(3)]
    return bytes_of(np.stack(stretched, 2))


def _smooth(values: np.ndarray, sigma: float) -> np.ndarray:
    smooth: np.ndarray = ndimage.gaussian_filter(values, sigma, mode="reflect", truncate=3)
    return smooth
