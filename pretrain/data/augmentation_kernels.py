# Triton reads names and constants from signatures, not types, and a kernel takes whatever it needs by position.
# ruff: noqa: ANN001, ANN201, ANN202, PLR0917
# mypy: ignore-errors
"""Triton kernels of the augmentation of views: all that changes single pixels, without a tensor in between.

Importing this file needs Triton; `pretrain/data/fused_augmentation.py` launches what is here.

Letters: R rows, A pixels of a row. A program works on pixels of one row, so all its threads take the same branches.
"""

import triton
import triton.language as tl

from .augmentation import GREY

_RED, _GREEN, _BLUE = map(tl.constexpr, GREY)
# Columns of a row of numbers.
FLIP = tl.constexpr(0)
FIRST = tl.constexpr(1)  # of four: which operation of the jitter comes first, second, ...
BRIGHTNESS = tl.constexpr(5)
CONTRAST = tl.constexpr(6)
SATURATION = tl.constexpr(7)
OWN_HUE = tl.constexpr(8)  # of three: each channel's own hue, relative to the rotated one
GREYED = tl.constexpr(11)
SOLARIZED = tl.constexpr(12)
NUMBERS = tl.constexpr(13)


@triton.jit
def _grey(red, green, blue):
    return red * _RED + green * _GREEN + blue * _BLUE


@triton.jit
def _unit(channel):
    return tl.minimum(tl.maximum(channel, 0.0), 1.0)


@triton.jit
def _rotated(hue, chroma, low, own):
    """A channel of a rotated hue; see `pretrain/data/augmentation.py`."""
    distance = tl.abs(tl.abs(hue - chroma * own) - 3 * chroma)
    return tl.minimum(tl.maximum(distance, chroma), 2 * chroma) + low


@triton.jit
def _read(crops, numbers, row, first, A, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Pixels of a crop in [0, 1], from place `first` on, flipped where its numbers say so."""
    at = first + tl.arange(0, BLOCK)
    inside = at < A
    column = at % SIDE
    source = tl.where(tl.load(numbers + FLIP) > 0, at - column + SIDE - 1 - column, at)
    pointer = crops + (row.to(tl.int64) * A + source) * 3
    red = tl.load(pointer, mask=inside, other=0).to(tl.float32) / 255
    green = tl.load(pointer + 1, mask=inside, other=0).to(tl.float32) / 255
    blue = tl.load(pointer + 2, mask=inside, other=0).to(tl.float32) / 255
    return red, green, blue, at, inside


@triton.jit
def _jitter(red, green, blue, numbers, mean, first, last):
    """The operations of the jitter from `first` to before `last`; `mean` is the row's grey that contrast needs."""
    for place in range(first, last):
        operation = tl.load(numbers + FIRST + place)
        if operation == 0:
            factor = tl.load(numbers + BRIGHTNESS)
            red, green, blue = _unit(red * factor), _unit(green * factor), _unit(blue * factor)
        elif operation == 1:
            factor = tl.load(numbers + CONTRAST)
            other = mean * (1 - factor)
            red, green, blue = _unit(red * factor + other), _unit(green * factor + other), _unit(blue * factor + other)
        elif operation == 2:
            factor = tl.load(numbers + SATURATION)
            grey = _grey(red, green, blue) * (1 - factor)
            red, green, blue = _unit(red * factor + grey), _unit(green * factor + grey), _unit(blue * factor + grey)
        elif operation == 3:
            high, low = tl.maximum(tl.maximum(red, green), blue), tl.minimum(tl.minimum(red, green), blue)
            chroma = high - low
            size = tl.abs(green + blue - red + high - 2 * low)
            hue = tl.where(green >= blue, size, -size)
            low -= chroma
            red = _rotated(hue, chroma, low, tl.load(numbers + OWN_HUE))
            green = _rotated(hue, chroma, low, tl.load(numbers + OWN_HUE + 1))
            blue = _rotated(hue, chroma, low, tl.load(numbers + OWN_HUE + 2))
    return red, green, blue


@triton.jit
def colour_kernel(crops, numbers, images, A, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Flip, jitter and grey: crops uint8 [R, A, 3] -> images float32 [R, 3, A] in [0, 1]; one program per row.

    Contrast needs the row's mean grey before it, so pixels are read and changed up to there twice.
    """
    row = tl.program_id(0)
    numbers += row * NUMBERS
    contrast = 4  # its place among the operations; 4 for none
    for place in range(4):
        if tl.load(numbers + FIRST + place) == 1:
            contrast = place
    mean = 0.0
    if contrast < 4:
        total = tl.zeros([BLOCK], tl.float32)
        for first in range(0, A, BLOCK):
            red, green, blue, _, inside = _read(crops, numbers, row, first, A, SIDE, BLOCK)
            red, green, blue = _jitter(red, green, blue, numbers, mean, 0, contrast)
            total += tl.where(inside, _grey(red, green, blue), 0.0)
        mean = tl.sum(total, 0) / A
    greyed = tl.load(numbers + GREYED) > 0
    images += row.to(tl.int64) * 3 * A
    for first in range(0, A, BLOCK):
        red, green, blue, at, inside = _read(crops, numbers, row, first, A, SIDE, BLOCK)
        red, green, blue = _jitter(red, green, blue, numbers, mean, 0, 4)
        grey = _grey(red, green, blue)
        tl.store(images + at, tl.where(greyed, grey, red), mask=inside)
        tl.store(images + A + at, tl.where(greyed, grey, green), mask=inside)
        tl.store(images + 2 * A + at, tl.where(greyed, grey, blue), mask=inside)


@triton.jit
def finish_kernel(images, numbers, views, A, FROM, mean0, mean1, mean2, std0, std1, std2, BLOCK: tl.constexpr):
    """Solarize and normalise: images float32 [R, 3, A] -> views [R, A, 3]; a program has BLOCK pixels of one row."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < A
    least = tl.where(tl.load(numbers + row * NUMBERS + SOLARIZED) > 0, FROM, 2.0)  # no value is 2
    images += row.to(tl.int64) * 3 * A
    red = tl.load(images + at, mask=inside)
    green = tl.load(images + A + at, mask=inside)
    blue = tl.load(images + 2 * A + at, mask=inside)
    pointer = views + (row.to(tl.int64) * A + at) * 3
    red = tl.where(red >= least, 1 - red, red)
    green = tl.where(green >= least, 1 - green, green)
    blue = tl.where(blue >= least, 1 - blue, blue)
    tl.store(pointer, (red - mean0) / std0, mask=inside)
    tl.store(pointer + 1, (green - mean1) / std1, mask=inside)
    tl.store(pointer + 2, (blue - mean2) / std2, mask=inside)
