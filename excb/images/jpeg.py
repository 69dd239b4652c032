"""JPEG files straight to arrays: faster decoders where they give Pillow's pixels, bit for bit."""

import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import ExifTags, Image
from PIL.JpegImagePlugin import JpegImageFile

from excb.errors import UserError
from excb.files.foreign import open_file, refuse_special
from excb.images.decoding import DAMAGE, UPRIGHT, Shrink, Source
from excb.images.formats.colour import profile_of
from excb.images.formats.plugins import open_plain

try:
    import simplejpeg
except ImportError:  # the extra `fast`
    simplejpeg = None

_END, _TRAILER = b"\xff\xd9", 256  # the marker that ends a JPEG, and how many bytes from the end it is looked for

_START, _MARK, _SCAN = b"\xff\xd8", 0xFF, 0xDA
_CODING = {0xC4, 0xDB, 0xDD, 0xE0, 0xFE}  # tables, restarts, JFIF and comments
_FRAMES = {0xC0, 0xC1, 0xC2}  # coded by Huffman's method, baseline to progressive
_COMPONENTS = {b"\1", b"\1\2\3"}  # grey, and colours as JFIF numbers them
_HEADER = 2**16  # bytes in which a header without EXIF data and profiles ends

Decoder = Literal["auto", "simplejpeg", "torchvision", "pillow"]
Decode = Callable[[bytes, tuple[int, int], int], np.ndarray | None]  # file, width and height, divisor of both


def require_installed(decoder: Decoder) -> None:
    """Refuse a decoder that is not installed; the others fall back to Pillow. Raises UserError."""
    if decoder == "simplejpeg" and simplejpeg is None:
        raise UserError(
            "efficiency.decoder=simplejpeg needs simplejpeg: run `pip install 'excb[fast]'`, or set "
            "efficiency.decoder=auto for the same pixels by another decoder"
        )


def decode_jpeg(source: Source, decoder: Decoder = "auto") -> np.ndarray | None:
    """Decode an upright JPEG in colour or grey, bit-exact with `excb.images.decoding.open_image`.

    All decoders are libjpeg-turbo's. Pixels may differ by rounding where they are built from different versions of it,
    which `excb-pretrain doctor` compares. A stream is read from its beginning and left open.

    Args:
        source: any file.
        decoder: "auto" is simplejpeg where it is installed, then torchvision; "simplejpeg" is the same, which
            `require_installed` checks; "torchvision" is it alone; "pillow" is neither.

    Returns:
        RGB [H, W, 3] uint8, or None where the file is damaged or anything else: `open_image` then handles it.
    """
    decoded = smaller_pixels(source, lambda _size: 1, decoder)
    return None if decoded is None else decoded[0]


def smaller_pixels(
    source: Source, shrink: Shrink, decoder: Decoder = "auto"
) -> tuple[np.ndarray, tuple[int, int]] | None:
    """Decode as `decode_jpeg` does, at reduced size where wanted, bit-exact with `excb.images.decoding.open_smaller`.

    Only simplejpeg reduces; what it does not decode is left to Pillow.

    Args:
        source: any file.
        shrink: see `open_smaller`.
        decoder: see `decode_jpeg`.

    Returns:
        RGB [h, w, 3] uint8 with the full width and height, or None: `open_smaller` then handles the file.
    """
    decoders = _decoders(decoder)
    if not decoders:
        return None
    try:
        if (plain := _plain(source)) is not None:
            coded, size = plain
            divisor = _pillows_divisor(size, shrink(size))
            with warnings.catch_warnings(action="ignore"):  # torchvision plans to move decoding elsewhere
                for decode in decoders:
                    if (array := decode(coded, size, divisor)) is not None:
                        return array, size
    except DAMAGE:
        pass
    return None


def whole_file(source: Source) -> tuple[bytes, tuple[int, int]] | None:
    """The bytes of an upright JPEG in colour or grey that has an end, with its width and height; else None.

    Only the header is looked at: what it holds may be damaged. A stream is read from its beginning and left open.
    """
    try:
        plain = _plain(source)
    except DAMAGE:
        return None
    return plain if plain is not None and _END in plain[0][-_TRAILER:] else None


def _plain(source: Source) -> tuple[bytes, tuple[int, int]] | None:
    """An upright JPEG in sRGB or grey, with its width and height; None for anything else. Raises one of DAMAGE."""
    if isinstance(source, (str, Path)):
        refuse_special(source)
        with open_file(source) as stream:
            return _plain(stream)
    source.seek(0)
    coded = source.read(_HEADER)
    if (size := plain_size(coded)) is not None:
        return coded + source.read(), size
    source.seek(0)
    with warnings.catch_warnings(action="ignore"), open_plain(source) as image:
        # Not subclasses, such as stereo cameras' files. So far Pillow has read no more than the header.
        plain = type(image) is JpegImageFile and image.mode in ("RGB", "L")
        if not plain or image.getexif().get(ExifTags.Base.Orientation, UPRIGHT) != UPRIGHT:
            return None
        if profile_of(image) == "converted":
            return None
        source.seek(0)
        return source.read(), image.size


def plain_size(header: bytes) -> tuple[int, int] | None:
    """Width and height of a JPEG whose header says no more than how it is coded; None for any other.

    Such a file has neither EXIF data nor a colour profile, so there is nothing for Pillow to read, which takes a third
    of the time of an image of 32 pixels.

    Args:
        header: a file's first bytes, up to its first scan.
    """
    if header[:2] != _START:
        return None
    place, size = 2, None
    while place + 4 <= len(header):
        mark, kind = header[place], header[place + 1]
        length = int.from_bytes(header[place + 2 : place + 4], "big")
        if mark != _MARK or (kind not in _CODING and kind not in _FRAMES and kind != _SCAN):
            return None
        if kind == _SCAN:
            return size
        if kind in _FRAMES:
            frame = header[place + 4 : place + 2 + length]
            if size is not None or len(frame) < 6 or frame[0] != 8 or frame[6::3] not in _COMPONENTS:
                return None
            height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
            if not 0 < width * height <= (Image.MAX_IMAGE_PIXELS or 0):
                return None
            size = width, height
        place += 2 + length
    return None


def _decoders(decoder: Decoder) -> list[Decode]:
    """The decoders to try before Pillow, in order."""
    decoders: list[Decode] = []
    if decoder in ("auto", "simplejpeg") and simplejpeg is not None:
        decoders.append(_by_simplejpeg)
    if decoder != "pillow":
        decoders.append(_by_torchvision)
    return decoders


def _pillows_divisor(size: tuple[int, int], divisor: int) -> int:
    """The divisor that Pillow takes for the sides that `open_smaller` asks for: small images allow less."""
    possible = min(side // max(1, side // divisor) for side in size)
    return max(factor for factor in (1, 2, 4, 8) if factor <= possible)


def _by_simplejpeg(coded: bytes, size: tuple[int, int], divisor: int) -> np.ndarray | None:
    """None for all of which libjpeg warns, which `strict` makes an error, and for processes that TurboJPEG lacks."""
    width, height = (-(-side // divisor) for side in size)
    try:
        array: np.ndarray = simplejpeg.decode_jpeg(
            coded, "RGB", min_width=width, min_height=height, min_factor=divisor, strict=True
        )
    except ValueError:
        return None
    return array if array.shape == (height, width, 3) else None


def _by_torchvision(coded: bytes, size: tuple[int, int], divisor: int) -> np.ndarray | None:  # noqa: ARG001 - one form
    """None where a smaller image is wanted, or without torchvision. Raises one of DAMAGE where libjpeg stops."""
    if divisor > 1 or (decode := _torchvision()) is None:
        return None
    array: np.ndarray = decode(torch.frombuffer(bytearray(coded), dtype=torch.uint8)).permute(1, 2, 0).numpy()
    return array


@cache
def _torchvision() -> Callable[[torch.Tensor], Any] | None:
    """Import torchvision's decoder where it is needed: that costs each worker seconds and 160 MB. None without it."""
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError:  # torchvision plans to move decoding to another package
        return None
    return partial(decode_jpeg, mode=ImageReadMode.RGB)
