"""Images of any number of channels as they are stored: NumPy arrays, and TIFF files that Pillow cannot read whole.

An array [H, W] has one channel. One with three axes is [H, W, C] or [C, H, W]: the channels are its first or last axis,
whichever is at most half as long as the two others. Where that does not tell, the number of channels must be known.
"""

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np

from excb.console import plural
from excb.errors import UserError, first_line
from excb.files import npy
from excb.files.foreign import check_memory, open_file, refuse_special

NPY = ".npy"
MOST_VALUES = 2**30  # of one image: a forged header states more
_ARRAY, _TIFF = b"\x93NUMPY", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # first bytes of a file; + is BigTIFF
_DEFLATED = (8, 32946)  # of its compressions
_COLOURS, _ALPHA = 2, (1, 2)  # TIFF's photometric interpretations from RGB on, and its kinds of transparency


Source = Path | str | IO[bytes]

_PILLOWS = ("bool", "uint8", "uint16", "uint32", "int16", "int32", "float32")  # types of greys that Pillow reads


class BandsError(ValueError):
    """A file that holds no image, or not the one that is asked for; the message says why."""


@dataclass(frozen=True)
class Bands:
    """Shape and type of an image's stored values, as its header states them."""

    height: int
    width: int
    channels: int
    dtype: np.dtype[Any]


def read_header(source: Source, channels: int | None = None) -> Bands | None:
    """The shape and type of what `read_bands` returns, from the file's header; None as there.

    Raises:
        BandsError: as `read_bands`.
    """
    with _opened(source) as (kind, stream):
        if kind == "array":
            shape, dtype = _npy_header(stream)
            return _described(shape, dtype, _channel_axis(shape, channels))
        if kind == "tiff" and (page := _bands_of(stream, channels)) is not None:
            return _described(page.shape, page.dtype, _tiff_axis(page, channels))
    return None


def read_bands(source: Source, channels: int | None = None) -> np.ndarray | None:
    """Read an image's stored values [H, W, C], in the file's own type.

    Args:
        source: any file; a stream is read from its beginning and left open.
        channels: C, if it is known. It also decides that the pages of a TIFF, one value a pixel each, are the channels
            of one image, where there are C of them; else the first page is the image, as with animations.

    Returns:
        None for anything but an array, or a TIFF of several channels that is not 8-bit colour.

    Raises:
        BandsError: the file is missing or damaged, holds no numbers, has another number of channels or axes that
            do not tell which of them the channels are; or its compression needs the extra `bands`.
    """
    with _opened(source) as (kind, stream):
        if kind == "array":
            shape, _ = _npy_header(stream)
            axis = _channel_axis(shape, channels)
            stream.seek(0)
            return _channels_last(npy.read_npy(stream), axis)
        if kind == "tiff" and (page := _bands_of(stream, channels)) is not None:
            axis = _tiff_axis(page, channels)
            return _channels_last(_decoded(page), axis)
    return None


@contextmanager
def _opened(source: Source) -> Iterator[tuple[str, IO[bytes]]]:
    """The kind of a file, "array", "tiff" or "", and its bytes from the beginning; raises as `read_bands` does."""
    try:
        refuse_special(source)
        if not isinstance(source, str | Path):
            source.seek(0)
        with open_file(source) if isinstance(source, str | Path) else _kept(source) as stream:
            start = stream.read(len(_ARRAY))
            stream.seek(0)
            yield "array" if start == _ARRAY else "tiff" if start[:4] in _TIFF else "", stream
    except BandsError:
        raise
    except (*npy.DAMAGE, RuntimeError) as error:
        raise BandsError(f"{type(error).__name__}: {first_line(error)}") from None


@contextmanager
def _kept(stream: IO[bytes]) -> Iterator[IO[bytes]]:
    try:
        yield stream
    finally:
        stream.seek(0)


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array, bounded before any memory is taken."""
    with npy.unwarned():
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    _require_numbers(shape, dtype)
    return shape, dtype


def _require_numbers(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "buif" or len(shape) not in (2, 3) or 0 in shape or np.prod(shape, dtype=float) > MOST_VALUES:
        raise BandsError(
            f"an array of {dtype} {list(shape)} is no image: it takes numbers [H, W], [H, W, C] or [C, H, W]"
        )


def _channel_axis(shape: tuple[int, ...], channels: int | None) -> int | None:
    """Which axis of an array the channels are: 0 or 2; None for a single channel without an axis of its own."""
    if len(shape) == 2:
        if channels in (None, 1):
            return None
        raise BandsError(f"it has one channel, not {channels}")
    first, middle, last = shape
    if channels is None:
        fitting = [axis for axis, other in ((0, last), (2, first)) if 2 * shape[axis] <= min(middle, other)]
    else:
        fitting = [axis for axis in (0, 2) if shape[axis] == channels]
    if len(fitting) == 1:
        return fitting[0]
    if channels is not None and not fitting:
        raise BandsError(f"an array {list(shape)} has no axis of {plural(channels, 'channel')}")
    raise BandsError(
        f"an array {list(shape)} may be [H, W, C] or [C, H, W]: declare its channels, such as "
        f"data.channels={min(first, last)}, or store it otherwise"
    )


def _bands_of(stream: IO[bytes], channels: int | None) -> Any:
    """The first image of a TIFF with more than Pillow can read, as one of tifffile's; None for any other.

    It is a page, or a series of pages where these are the channels.
    """
    import tifffile

    try:
        file = tifffile.TiffFile(stream)
        page: Any = file.pages[0]
        pages = len(file.pages) if page.samplesperpixel == 1 and channels not in (None, 1) else 1
        if pages == channels and pages > 1:
            return file.series[0]
        return None if _is_pillows(page) else page
    except tifffile.TiffFileError as error:
        raise BandsError(f"TiffFileError: {first_line(error)}") from None


def _is_pillows(page: Any) -> bool:
    """Whether Pillow reads all of a page's channels: one of any type, or 8-bit colour or grey with transparency."""
    samples = page.samplesperpixel
    if samples == 1:
        return page.dtype is None or page.dtype.name in _PILLOWS
    grey_alpha = samples == 2 and page.extrasamples and page.extrasamples[0] in _ALPHA
    eight_bit = page.dtype is None or page.dtype.itemsize == 1
    return bool(eight_bit and (grey_alpha or (samples in (3, 4) and page.photometric >= _COLOURS)))


def _tiff_axis(page: Any, channels: int | None) -> int | None:
    """Which axis of a TIFF's values the channels are; its header says it."""
    _require_numbers(page.shape, page.dtype)
    if len(page.shape) == 2:
        return _channel_axis(page.shape, channels)
    axis = 0 if page.axes[0] not in "YX" else 2
    if channels is not None and page.shape[axis] != channels:
        raise BandsError(f"it has {plural(page.shape[axis], 'channel')}, not {channels}")
    return axis


def _check_sizes(image: Any) -> None:
    """Raise ValueError if a TIFF's image would take more memory than is allowed beside that of the file."""
    import tifffile

    size = image.parent.filehandle.size
    pages: list[Any] = [image] if isinstance(image, tifffile.TiffPage) else list(image.pages)
    for page in pages:
        sides = page.tile if page.is_tiled else page.shape[:2]
        most = math.prod(sides) * page.samplesperpixel * page.dtype.itemsize
        check_memory(most - size)
        if page.compression in _DEFLATED and find_spec("imagecodecs") is None:  # whose decoder stops at the size
            _check_deflated(page, most)
    check_memory(math.prod(image.shape) * image.dtype.itemsize - size)


def _check_deflated(page: Any, most: int) -> None:
    """Raise ValueError if a part of a page unpacks to more bytes."""
    for data, *_ in page.parent.filehandle.read_segments(page.dataoffsets, page.databytecounts):
        unpacker = zlib.decompressobj()
        if data and unpacker.decompress(data, most) and unpacker.unconsumed_tail:
            raise ValueError("a part unpacks to more than its size")


def _decoded(page: Any) -> np.ndarray:
    """The values of a TIFF's image."""
    _check_sizes(page)
    try:
        values: np.ndarray = page.asarray()
    except (ImportError, ValueError) as error:
        if "imagecodecs" in str(error):
            raise UserError("a TIFF's compression needs imagecodecs: run `pip install 'excb[bands]'`") from None
        raise
    return values


def _described(shape: tuple[int, ...], dtype: np.dtype[Any], axis: int | None) -> Bands:
    if axis is None:
        return Bands(shape[0], shape[1], 1, dtype)
    height, width = shape[1:] if axis == 0 else shape[:2]
    return Bands(height, width, shape[axis], dtype)


def _channels_last(values: np.ndarray, axis: int | None) -> np.ndarray:
    """Values as [H, W, C], in the machine's byte order."""
    last = values[..., None] if axis is None else np.moveaxis(values, axis, -1)
    return last.astype(last.dtype.newbyteorder("="), copy=False)
