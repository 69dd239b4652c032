"""Opening of any image as upright 8-bit RGB, at full or reduced size, and the errors of damaged files."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
from PIL import ExifTags, Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from excb.files import npy
from excb.files.regular import refuse_special

PART = 2**20  # pixels

Source = Path | str | IO[bytes]  # an image as it is stored: a file, or a stream of its bytes
Shrink = Callable[[tuple[int, int]], int]  # upright width and height -> 1, 2, 4 or 8


class BrokenImageError(Exception):
    """A file that is not a readable image. The message says why."""


# What Pillow's decoders have been seen to raise for files with changed or missing bytes, and related errors.
DAMAGE = (*npy.DAMAGE, RuntimeError, Image.DecompressionBombError)


def open_image(source: Source) -> Image.Image:
    """Open an image of any format and mode as upright 8-bit RGB.

    EXIF rotation is applied, 16-bit and floating-point greys are scaled to 8 bits, and the first frame of an animation
    is taken.

    Raises:
        BrokenImageError: the file is missing, truncated, not an image, or a decompression bomb.
    """
    return open_smaller(source, lambda _size: 1)[0]


def open_smaller(source: Source, shrink: Shrink) -> tuple[Image.Image, tuple[int, int]]:
    """Open an image as `open_image` does, and a JPEG at a half, a quarter or an eighth of its sides if wanted.

    JPEG's decoder does less work for fewer pixels. Each one is a mean of those it replaces.

    Args:
        source: any image; a stream is read from its beginning, and left open.
        shrink: maps a JPEG's upright width and height to the divisor of both: 1, 2, 4 or 8. Sides stay at least 1.

    Returns:
        The image, and its full upright width and height.

    Raises:
        BrokenImageError: see `open_image`.
    """
    try:
        # Pillow warns of large images and of odd metadata. The user cannot fix them, and they do not change the pixels.
        refuse_special(source)
        with warnings.catch_warnings(action="ignore"), Image.open(source) as image:
            full_size = None
            if isinstance(image, JpegImageFile):
                width, height = image.size
                full_size = _upright_size(image)
                if (divisor := shrink(full_size)) > 1:
                    image.draft(None, (max(1, width // divisor), max(1, height // divisor)))
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return to_rgb(image), full_size or image.size
    except DAMAGE as error:
        raise _broken(error) from None


def _broken(error: Exception) -> BrokenImageError:
    """The error for a broken image, without the address that Pillow's message gives for one in memory."""
    reason = re.sub(r" <_io\.\w+ object at 0x[0-9a-f]+>", "", str(error))
    return BrokenImageError(f"{type(error).__name__}: {reason}")


def _upright_size(image: Image.Image) -> tuple[int, int]:
    turned = image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
    return (image.height, image.width) if turned else image.size


def stored_and_upright_size(source: Source) -> tuple[tuple[int, int], tuple[int, int]]:
    """Width and height as stored and as `open_image` returns them, without decoding. Raises BrokenImageError."""
    try:
        refuse_special(source)
        with warnings.catch_warnings(action="ignore"), Image.open(source) as image:  # as `open_image`
            return image.size, _upright_size(image)
    except DAMAGE as error:
        raise _broken(error) from None


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB without a warning. Pillow alone would clip 16-bit greys to white."""
    if image.mode.startswith("I") or image.mode == "F":
        image = _to_8_bits(image)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # from P straight to RGB, Pillow would warn that transparency is lost
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit or floating-point greys in parts: a whole image in float64 may take gigabytes."""
    values = np.asarray(image)
    flat, scaled = values.reshape(-1), np.empty(values.size, np.uint8)
    parts = [slice(start, start + PART) for start in range(0, values.size, PART)]
    highest = max((np.nan_to_num(flat[part]).max() for part in parts), default=0)
    low, high = (1.0, 255.0) if image.mode == "F" else (255.0, 65_535.0)
    top = low if highest <= low else high  # 8-bit values in a deep mode stay as they are
    for part in parts:
        scaled[part] = (np.nan_to_num(flat[part].astype(np.float64)).clip(0, top) * (255 / top)).round()
    return Image.fromarray(scaled.reshape(values.shape))
