"""Zooming into the middle of a square picture."""

import math

import numpy as np
from scipy import ndimage


def zoomed(values: np.ndarray, factor: float) -> np.ndarray:
    """The middle of a square [N, N, C], enlarged to its size by linear interpolation."""
    side = len(values)
    inner = math.ceil(side / factor)
    start = (side - inner) // 2
    middle = values[start : start + inner, start : start + inner]
    larger = ndimage.zoom(middle, (factor, factor, 1), order=1)
    surplus = (len(larger) - side) // 2
    result: np.ndarray = larger[surplus : surplus + side, surplus : surplus + side]
    return result
