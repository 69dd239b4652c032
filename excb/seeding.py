"""Counter-based random numbers: each is a function of its key, so that only a position is ever stored.

A key is a tuple of integers, such as (seed, epoch, sample, view). Its random number depends on nothing else: not on the
worker that draws it, the process, the batch, or what was drawn before. `generator` returns a NumPy generator for
one key. `uniform` returns one number for each of many keys at once, on any device.
"""

from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 64) - 1


class Purpose(IntEnum):
    """The purpose of a random number: the first integer of its key, so that no two purposes share a stream."""

    ORDER = 1
    VIEW = 2
    REPLACEMENT = 3
    EMPTY_CLUSTER = 4
    DROP_PATH = 5
    STEP = 6
    WEIGHTS = 7
    KMEANS = 8
    MONITOR = 9
    PHOTOGRAPHS = 10
    TRANSFER_ORDER = 11
    TRANSFER_VIEW = 12
    TRANSFER_WEIGHTS = 13
    SPLIT = 14
    BOOTSTRAP = 15
    STREAM = 16
    PATCHES = 17
    CORRUPTION = 18


def _signed(value: int) -> int:
    """The two's-complement value of 64 bits: torch has no unsigned 64-bit arithmetic."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


# splitmix64's constants (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
_GAMMA = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB


def fold(*key: int) -> int:
    """Fold a key into one well-mixed 64-bit integer."""
    state = 0
    for part in key:
        state = (state ^ (part & _MASK)) + _GAMMA & _MASK
        state = (state ^ (state >> 30)) * _MIX1 & _MASK
        state = (state ^ (state >> 27)) * _MIX2 & _MASK
        state ^= state >> 31
    return state


def fold_tensor(state: int | Tensor, part: Tensor) -> Tensor:
    """`fold` one more integer, different for every element, into a folded key.

    Args:
        state: what `fold` or `fold_tensor` returned for the first part of the key.
        part: int64 tensor of any shape, the key's next integer for every element.

    Returns:
        int64 tensor of the same shape, equal to `fold(*key, part[i])` as signed 64-bit integers.
    """
    mixed = (part ^ (_signed(state) if isinstance(state, int) else state)) + _signed(_GAMMA)
    mixed = (mixed ^ _shift(mixed, 30)) * _signed(_MIX1)
    mixed = (mixed ^ _shift(mixed, 27)) * _signed(_MIX2)
    return mixed ^ _shift(mixed, 31)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's `>>` copies the sign bit."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def uniform(state: int | Tensor, part: Tensor) -> Tensor:
    """Uniform float64 numbers in [0, 1), one for each key, on `part`'s device (arguments as `fold_tensor`)."""
    return _shift(fold_tensor(state, part), 11).to(torch.float64) * 2.0**-53


def generator(*key: int) -> np.random.Generator:
    """A NumPy generator for one key (counter-based Philox: 10 microseconds to make, nothing to store)."""
    return np.random.Generator(np.random.Philox(key=fold(*key)))
