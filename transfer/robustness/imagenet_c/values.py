"""Values of pixels between 0 and 1, in which most corruptions compute, and between 0 and 255."""

from typing import Any

import numpy as np


def bytes_of(values: Any) -> np.ndarray:
    """Values between 0 and 1 as values between 0 and 255, not yet rounded; what lies beyond is cut off."""
    clipped: np.ndarray = values.clip(0, 1)
    return clipped * 255
