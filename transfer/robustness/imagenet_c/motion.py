"""The motion blur of ImageMagick: a one-sided Gaussian along a line, in its 16-bit arithmetic."""

import math

import numpy as np

_DEPTH = 65_535 // 255  # what ImageMagick multiplies a value of 8 bits by


def blur_along(pixels: np.ndarray, radius: int, sigma: float, angle: float) -> np.ndarray:
    """Blur as `magick -motion-blur` does, uint8 [H, W] or [H, W, C].

    The value of a pixel is the mean of 2 radius + 1 pixels on the line that leaves it at `angle`, weighted by a
    Gaussian of their distance. Positions are rounded to pixels, and pixels beyond the edge have the value at the edge.

    Args:
        pixels: uint8 [H, W] or [H, W, C].
        radius: of the kernel, in pixels.
        sigma: of the kernel, in pixels.
        angle: of the line, in degrees.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    turn = math.radians(angle)
    across, down = (np.ceil(steps * part - 0.5).astype(int) for part in (math.cos(turn), math.sin(turn)))
    values = pixels.astype(float) * _DEPTH
    blurred = sum(weight * _moved(values, dy, dx) for weight, dx, dy in zip(weights, across, down, strict=True))
    assert isinstance(blurred, np.ndarray)
    sixteen_bits = np.floor(blurred + 0.5)
    eight_bits: np.ndarray = sixteen_bits // _DEPTH  # rounded down where it writes the PNG that the authors read
    return eight_bits.astype(np.uint8)


def _moved(values: np.ndarray, down: int, across: int) -> np.ndarray:
    """The values at positions moved by whole pixels; those at the edge continue beyond it."""
    rows = (np.arange(values.shape[0]) + down).clip(0, values.shape[0] - 1)
    columns = (np.arange(values.shape[1]) + across).clip(0, values.shape[1] - 1)
    moved: np.ndarray = values[rows][:, columns]
    return moved
