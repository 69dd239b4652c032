"""Plasma: a random height map of the diamond-square algorithm, which repeats at its edges."""

import numpy as np
from numpy.random import RandomState


def plasma(side: int, decay: float, draws: RandomState) -> np.ndarray:
    """Heights between 0 and 1, float64 [side, side].

    Points between four others, first the middles of squares, then of the diamonds that these make, get the mean of the
    four and a random change, whose scale falls by `decay` with each halving of the distance.

    Args:
        side: a power of two.
        decay: the smaller, the finer the structure.
        draws: random numbers.
    """
    heights = np.zeros((side, side))
    step, change = side, 100.0
    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        pairs = corners + np.roll(corners, -1, 0)
        middles = _between(pairs + np.roll(pairs, -1, 1), change, draws)
        heights[half::step, half::step] = middles
        vertical = middles + np.roll(middles, 1, 0)
        heights[::step, half::step] = _between(vertical + (corners + np.roll(corners, -1, 1)), change, draws)
        horizontal = middles + np.roll(middles, 1, 1)
        heights[half::step, ::step] = _between(horizontal + (corners + np.roll(corners, -1, 0)), change, draws)
        step, change = half, change / decay
    heights -= heights.min()
    scaled: np.ndarray = heights / heights.max()
    return scaled


def _between(sums: np.ndarray, change: float, draws: RandomState) -> np.ndarray:
    """The means of four, with random changes: the authors' scale is `change` squared."""
    return sums / 4 + change * draws.uniform(-change, change, sums.shape)
