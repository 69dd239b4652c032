"""Opening of any image as upright 8-bit RGB, at full or reduced size, and the errors of damaged files."""

import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, overload

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from excb.files import bands
from excb.files.foreign import refuse_special
from excb.images import depth
from excb.images.formats.known import DAMAGE
from excb.images.formats.plugins import is_raw, open_pillow, raw_sizes
from excb.images.formats.video import frame_of
from excb.images.pixels import EIGHT_BIT, BrokenImageError, Notice, Pixels, PixelsError, Source

__all__ = ["DAMAGE", "BrokenImageError", "PixelsError", "Source", "open_image", "open_smaller", "to_rgb"]

UPRIGHT = 1  # of EXIF's orientations
Shrink = Callable[[tuple[int, int]], int]  # upright width and height -> 1, 2, 4 or 8


@overload
def open_image(source: Source) -> Image.Image: ...
@overload
def open_image(source: Source, pixels: Pixels, notice: Notice | None = None) -> Any: ...
def open_image(source: Source, pixels: Pixels = EIGHT_BIT, notice: Notice | None = None) -> Any:
    """Open an image of any format and mode upright, in 8 bits, as its set's record of pixels says.

    EXIF rotation is applied, and the first frame of an animation is taken. `notice` is called if it has more than 8
    bits and values outside the set's range.

    Returns:
        A PIL image in RGB; for other than three channels, uint8 [H, W, C].

    Raises:
        PixelsError: it has other channels, or more than 8 bits while only those are declared.
        BrokenImageError: the file is missing, truncated, not an image, or a decompression bomb.
    """
    return open_smaller(source, lambda _size: 1, pixels, notice)[0]


def open_smaller(
    source: Source, shrink: Shrink, pixels: Pixels = EIGHT_BIT, notice: Notice | None = None
) -> tuple[Any, tuple[int, int]]:
    """Open an image as `open_image` does, and a JPEG at a half, a quarter or an eighth of its sides if wanted.

    JPEG's decoder does less work for fewer pixels. Each one is a mean of those it replaces.

    Args:
        source: any image; a stream is read from its beginning, and left open.
        shrink: maps a JPEG's upright width and height to the divisor of both: 1, 2, 4 or 8. Sides stay at least 1.
        pixels: see `open_image`.
        notice: likewise.

    Returns:
        The image as `open_image` has it, and its full upright width and height.

    Raises:
        PixelsError, BrokenImageError: see `open_image`.
    """
    try:
        # Pillow warns of large images and of odd metadata. The user cannot fix them, and they do not change the pixels.
        _refuse_special(source)
        with warnings.catch_warnings(action="ignore"), open_pillow(source) as image:
            if not pixels.plain or depth.is_deep(image):
                return _opened(depth.upright(depth.mapped(image, pixels, source, notice), image))
            full_size, orientation = None, None
            if isinstance(image, JpegImageFile):
                width, height = image.size
                orientation = _orientation(image)
                full_size = _turned(image.size, orientation)
                if (divisor := shrink(full_size)) > 1:
                    image.draft(None, (max(1, width // divisor), max(1, height // divisor)))
            image.load()
            if orientation != UPRIGHT:  # else nothing turns, and Pillow need not read EXIF data again
                ImageOps.exif_transpose(image, in_place=True)
            return depth.plain_rgb(image, pixels.colours), full_size or image.size
    except UnidentifiedImageError as error:
        if (values := _other_values(source, pixels)) is None:
            raise _broken(error) from None
        return _opened(depth.channels_of(values, pixels, notice))
    except bands.BandsError as error:
        raise BrokenImageError(str(error)) from None
    except DAMAGE as error:
        raise _broken(error) from None


def _opened(channels: np.ndarray) -> tuple[Any, tuple[int, int]]:
    """Channels [H, W, C] as `open_smaller` returns them."""
    size = (channels.shape[1], channels.shape[0])
    return (Image.fromarray(channels) if channels.shape[2] == 3 else channels), size


def _refuse_special(source: Source) -> None:
    """`refuse_special` of the file that holds an image: of a frame, its video."""
    frame = frame_of(source)
    refuse_special(source if frame is None else frame[0])


def _other_values(source: Source, pixels: Pixels) -> np.ndarray | None:
    """Stored values [H, W, C] of a file that Pillow does not know, or None. Raises BrokenImageError."""
    try:
        return bands.read_bands(source, None if pixels.channels == 3 else pixels.channels)
    except bands.BandsError as error:
        raise BrokenImageError(str(error)) from None


def _broken(error: Exception) -> BrokenImageError:
    """The error for a broken image, without the address that Pillow's message gives for one in memory."""
    reason = re.sub(r" <_io\.\w+ object at 0x[0-9a-f]+>", "", str(error))
    return BrokenImageError(f"{type(error).__name__}: {reason}")


def _turned(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    return size[::-1] if orientation in (5, 6, 7, 8) else size


def _orientation(image: Image.Image) -> int:
    orientation: int = image.getexif().get(ExifTags.Base.Orientation, UPRIGHT)
    return orientation


def stored_and_upright_size(source: Source) -> tuple[tuple[int, int], tuple[int, int]]:
    """Width and height as stored and as `open_image` returns them, without decoding. Raises BrokenImageError."""
    try:
        _refuse_special(source)
        if is_raw(source):
            return raw_sizes(source)
        with warnings.catch_warnings(action="ignore"), open_pillow(source) as image:  # as `open_image`
            return image.size, _turned(image.size, _orientation(image))
    except UnidentifiedImageError as error:
        with suppress(bands.BandsError):
            if (found := bands.read_header(source)) is not None:
                return (found.width, found.height), (found.width, found.height)
        raise _broken(error) from None
    except DAMAGE as error:
        raise _broken(error) from None


def to_rgb(image: Image.Image, pixels: Pixels = EIGHT_BIT) -> Image.Image:
    """Convert any mode to 8-bit RGB without a warning, its colours as a record of pixels says.

    Raises:
        PixelsError: it has more than 8 bits, and no range of them is declared.
    """
    if depth.is_deep(image) or pixels.deep:
        return Image.fromarray(depth.mapped(image, pixels if pixels.channels == 3 else replace(pixels, channels=3)))
    return depth.plain_rgb(image, pixels.colours)
