"""Stored values of an opened image: of more than 8 bits, or of other channels than red, green and blue."""

import io
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from excb.console import plural
from excb.files import bands
from excb.files.foreign import read_bytes, refuse_special
from excb.images.formats.colour import Profile, in_srgb, profile_of
from excb.images.formats.known import DAMAGE
from excb.images.formats.plugins import is_raw, open_pillow, open_plain
from excb.images.pixels import BrokenImageError, Colours, Notice, Pixels, PixelsError, Source

_COLOURS = ("RGB", "RGBA")
_BITS, _FORMAT, _EXTRA = 258, 339, 338  # TIFF's tags: bits of each sample, their kind, the meaning of extra samples
_KINDS = {1: "u", 2: "i", 3: "f"}  # of TIFF's samples, as NumPy names them
_ALPHA = (1, 2)  # TIFF's extra samples that are transparency

# How to turn stored rows and columns upright, by EXIF's orientation.
_TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda values: values[:, ::-1],
    3: lambda values: values[::-1, ::-1],
    4: lambda values: values[::-1],
    5: lambda values: values.swapaxes(0, 1),
    6: lambda values: np.rot90(values, -1),
    7: lambda values: np.rot90(values, 2).swapaxes(0, 1),
    8: np.rot90,
}


def stored_type(image: Image.Image) -> np.dtype[Any]:
    """The type of an image's stored values; of a file before its pixels are loaded, its header states it."""
    if image.format == "TIFF" and (bits := max(_tag(image, _BITS, 1))) > 8:
        return np.dtype(f"{_KINDS.get(_tag(image, _FORMAT, 1)[0], 'u')}{2 if bits <= 16 else 4 if bits <= 32 else 8}")
    if image.mode == "F":
        return np.dtype(np.float32)
    if image.mode.startswith("I;16") or (image.format == "PPM" and image.mode == "I") or _is_deep_png(image):
        return np.dtype(np.uint16)
    return np.dtype(np.int32 if image.mode == "I" else np.uint8)


def _tag(image: Any, tag: int, default: int) -> tuple[int, ...]:
    return tuple(image.tag_v2.get(tag) or (default,))


def _is_deep_png(image: Any) -> bool:
    """Whether a PNG has 16 bits for each colour, of which Pillow keeps 8; once it is loaded, that is unknown."""
    return image.format == "PNG" and bool(image.tile) and ";16" in str(image.tile[0][3])


def is_deep(image: Image.Image) -> bool:
    """Whether an opened image has more than 8 bits in a channel, or channels that Pillow would drop."""
    return stored_type(image) != np.uint8 or _has_more_channels(image)


def _has_more_channels(image: Image.Image) -> bool:
    """Whether an 8-bit TIFF has a fourth channel that is not transparency, such as near infrared."""
    if image.format != "TIFF" or image.mode not in _COLOURS:
        return False
    extra = _tag(image, _EXTRA, _ALPHA[0])
    return len(_tag(image, _BITS, 1)) > len("RGB") and not set(extra) <= set(_ALPHA)


def described(source: Source, channels: int | None = None) -> tuple[np.dtype[Any], int]:
    """The type of a file's stored values and its channels, without transparency, by its header.

    Args:
        source: any image.
        channels: see `excb.files.bands.read_header`.

    Raises:
        BrokenImageError: it is not an image.
    """
    try:
        refuse_special(source)
        if is_raw(source):  # developed into 8 bits
            return np.dtype(np.uint8), 3
        with warnings.catch_warnings(action="ignore"), open_pillow(source) as image:
            if (
                image.format == "TIFF"
                and (is_deep(image) or channels)
                and (found := bands.read_header(source, channels))
            ):
                return found.dtype, found.channels
            return stored_type(image), 1 if len(image.getbands()) < 3 and image.mode != "P" else 3
    except UnidentifiedImageError as error:
        with suppress(bands.BandsError):
            if (found := bands.read_header(source, channels)) is not None:
                return found.dtype, found.channels
        raise BrokenImageError(str(error)) from None
    except DAMAGE as error:
        raise BrokenImageError(str(error)) from None


def profile(source: Source) -> Profile:
    """The effect of a file's embedded colour profile; "none" for a broken file."""
    try:
        refuse_special(source)
        with warnings.catch_warnings(action="ignore"), open_plain(source) as image:
            return profile_of(image)
    except DAMAGE:
        return "none"


def read_values(source: Source, channels: int) -> np.ndarray:
    """A file's stored values, [H, W] or [H, W, C], before any mapping. Raises BrokenImageError."""
    try:
        refuse_special(source)
        with warnings.catch_warnings(action="ignore"), open_pillow(source) as image:
            return _values(image, channels, source)
    except UnidentifiedImageError as error:
        with suppress(bands.BandsError):
            if (values := bands.read_bands(source, None if channels == 3 else channels)) is not None:
                return values
        raise BrokenImageError(str(error)) from None
    except DAMAGE as error:
        raise BrokenImageError(str(error)) from None


def mapped(
    image: Image.Image, pixels: Pixels, source: Source | None = None, notice: Notice | None = None
) -> np.ndarray:
    """An opened image's channels, uint8 [H, W, C], not turned upright.

    Args:
        image: with or without its pixels loaded.
        pixels: how stored values become channels.
        source: its file, for what Pillow does not read whole; without it, the image is all there is.
        notice: called if values lie outside the range.

    Raises:
        PixelsError: it has other channels, or more than 8 bits while only those are declared.
    """
    return channels_of(_values(image, pixels.channels, source, pixels.colours), pixels, notice)


def _values(image: Image.Image, channels: int, source: Source | None, colours: Colours = "srgb") -> np.ndarray:
    """Stored values [H, W] or [H, W, C]."""
    known, deep = None if channels == 3 else channels, is_deep(image)
    if source is not None and image.format == "TIFF" and (deep or known):  # noqa: SIM102 - reads only what it must
        if (values := bands.read_bands(source, known)) is not None:
            return values
    if _is_deep_png(image):  # not loaded, so that its file is open
        return _png_values(source if source is not None else image.fp)  # type: ignore[attr-defined, unused-ignore]
    if deep:
        return np.asarray(image).astype(stored_type(image), copy=False)  # Pillow has int32 for uint32, int16 and more
    if channels == 3:
        return np.asarray(plain_rgb(image, colours))
    return np.asarray(image.convert("L") if channels == 1 or image.mode in ("1", "P") else image)


def _png_values(source: Source) -> np.ndarray:
    """All 16 bits of a PNG, uint16 [H, W, C]; transparency is left out."""
    import torch

    try:
        from torchvision.io import decode_png
    except ImportError:  # torchvision plans to move decoding to another package
        raise PixelsError("its 16-bit colours need torchvision's decoder of PNGs: save them as TIFF or .npy") from None

    coded = read_bytes(Path(source)) if isinstance(source, str | Path) else _whole(source)
    with warnings.catch_warnings(action="ignore"):  # torchvision plans to move decoding elsewhere
        values: np.ndarray = decode_png(torch.frombuffer(bytearray(coded), dtype=torch.uint8)).permute(1, 2, 0).numpy()
    return values[..., : values.shape[2] - 1 + values.shape[2] % 2]


def _whole(stream: Any) -> bytes:
    stream.seek(0, io.SEEK_SET)
    return bytes(stream.read())


def channels_of(values: np.ndarray, pixels: Pixels, notice: Notice | None = None) -> np.ndarray:
    """Map stored values, [H, W] or [H, W, C], to a set's channels, uint8 [H, W, C]; a grey image has three equal ones.

    Args:
        values: of one image.
        pixels: how they become channels.
        notice: called if any lie outside the range.

    Raises:
        PixelsError: they have other channels, or more than 8 bits while only those are declared.
    """
    values = values[..., None] if values.ndim == 2 else values
    count = values.shape[2]
    if count != pixels.channels and not (pixels.channels == 3 and count == 1):
        raise PixelsError(
            f"it has {plural(count, 'channel')}, not {pixels.channels}: leave it out, or declare the channels of all "
            "images (docs/channels.md)"
        )
    if values.dtype not in (np.uint8, np.bool_) and not pixels.deep:
        raise PixelsError(
            f"its {type_name(values.dtype)} values have no range: declare the one of the whole set, such as "
            "data.range=0..4095 (--range 0..4095 in commands without a recipe)"
        )
    if notice is not None and pixels.clips(values):
        notice()
    channels = pixels.apply(values)
    return channels.repeat(3, axis=2) if count < pixels.channels else channels


def type_name(stored: np.dtype[Any]) -> str:
    """A type of values in words, such as "16-bit" or "signed 16-bit"."""
    bits = f"{8 * stored.itemsize}-bit"
    return {"i": f"signed {bits}", "f": f"{bits} floating-point"}.get(stored.kind, bits)


def upright(values: np.ndarray, image: Image.Image) -> np.ndarray:
    """Turn channels [H, W, C] as an image's EXIF says."""
    turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return values if turn is None else np.ascontiguousarray(turn(values))


def plain_rgb(image: Image.Image, colours: Colours = "srgb") -> Image.Image:
    """An 8-bit image of any mode as RGB without a warning: in sRGB by its embedded profile, or as it is stored."""
    image = in_srgb(image) if colours == "srgb" else image
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # from P straight to RGB, Pillow would warn that transparency is lost
    return image if image.mode == "RGB" else image.convert("RGB")
