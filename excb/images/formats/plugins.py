"""Formats that Pillow opens with an extra: HEIC and JPEG XL by Pillow's plugins, and camera files by rawpy."""

import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from PIL import Image, UnidentifiedImageError

from excb.files import foreign
from excb.images.formats import jxl
from excb.images.formats.video import frame_of, open_frame

Source = Path | str | IO[bytes]
# Pillow logs a refusal of many bands besides raising it, and Python prints that: `excb.files.bands` reads such files.
logging.getLogger("PIL.TiffImagePlugin").addFilter(lambda record: "samples per pixel" not in str(record.msg))
_TILE_SIDES = (322, 323)  # TIFF's tags of the width and the height of its tiles
_TURNED = (5, 6)  # of rawpy's flips: a quarter to the left or right


@dataclass(frozen=True)
class Extra:
    """A format, and the package that opens it."""

    name: str  # of the extra of this package
    module: str
    extensions: tuple[str, ...]
    enable: Callable[[Any], None]  # called once with the module

    @property
    def advice(self) -> str:
        """The line that installs it."""
        return f"pip install 'excb[{self.name}]'"

    def register(self) -> bool:
        """Whether Pillow or the package opens such files here; a plugin is registered."""
        return _registered(self)


def _nothing(_module: Any) -> None:
    """Importing the package is enough."""


HEIC = Extra(
    "heic",
    "pillow_heif",
    (".heic", ".heif", ".hif", ".heics", ".heifs"),
    lambda module: module.register_heif_opener(thumbnails=False),
)


def _sized_first(_module: Any) -> None:
    """Let the plugin of JPEG XL decode only what `most_pixels` admits: it decodes an image as it opens it."""
    plugin, accept = Image.OPEN[_JPEG_XL]
    if plugin is not _open_jxl:
        _PLUGINS[_JPEG_XL] = plugin
        Image.register_open(_JPEG_XL, _open_jxl, accept)


def _open_jxl(stream: IO[bytes], name: str | bytes) -> Any:
    try:
        width, height = jxl.stated_size(stream)
    except ValueError as error:
        raise SyntaxError(str(error)) from None  # Pillow tries the next format then
    if width * height > most_pixels():
        raise Image.DecompressionBombError(f"{width} x {height} pixels are more than {most_pixels():,.0f}")
    return _PLUGINS[_JPEG_XL](stream, name)


_JPEG_XL = "JXL"  # to Pillow
_PLUGINS: dict[str, Any] = {}  # by Pillow's name of the format
JXL = Extra("jxl", "pillow_jxl", (".jxl",), _sized_first)
_CAMERAS = (
    ".3fr .arw .cr2 .cr3 .crw .dcr .dng .erf .fff .iiq .kdc .mef .mos .mrw .nef .nrw .orf .pef .raf .rw2 .rwl .sr2 "
    ".srf .srw .x3f"
)
RAW = Extra("raw", "rawpy", tuple(_CAMERAS.split()), _nothing)


@cache
def _registered(extra: Extra) -> bool:
    Image.init()
    if find_spec(extra.module) is None:
        return any(Image.EXTENSION.get(extension) in Image.OPEN for extension in extra.extensions)  # another plugin's
    extra.enable(import_module(extra.module))
    return True


def open_plain(source: Source) -> Image.Image:
    """`Image.open`, whose limit of pixels is that of `most_pixels`."""
    most = most_pixels()
    image = Image.open(source)
    tags = getattr(image, "tag_v2", {}) if image.format == "TIFF" else {}
    if math.prod(tags.get(side, 0) for side in _TILE_SIDES) > most:  # of a small image, too
        image.close()
        raise Image.DecompressionBombError(f"its tiles have more than {most:,.0f} pixels")
    return image


def most_pixels() -> float:
    """Pixels of the largest image that can be opened: as Pillow has it, or by EXCB_MEMORY_LIMIT, 4 bytes a pixel."""
    if foreign.VARIABLE in os.environ:
        Image.MAX_IMAGE_PIXELS = foreign.memory_limit() // 8  # Pillow refuses images of twice as many
    return 2 * (Image.MAX_IMAGE_PIXELS or math.inf)


def open_pillow(source: Source) -> Image.Image:
    """`Image.open`, with the plugins of extras, camera files developed, and frames of videos.

    Raises:
        UnidentifiedImageError: as `Image.open`, and where an extra is missing, which the message names.
        OSError: as `Image.open`, or a damaged camera file or video.
    """
    if (frame := frame_of(source)) is not None:
        return open_frame(*frame, most_pixels())
    if is_raw(source):
        return _developed(source)
    try:
        return open_plain(source)
    except UnidentifiedImageError:
        missing = [extra for extra in (HEIC, JXL) if not extra.register() and _ends_in(source, extra)]
        if missing:
            raise UnidentifiedImageError(f"such images need an extra: {missing[0].advice}") from None
        return open_plain(source)  # by a plugin that has just been registered


def is_raw(source: Source) -> bool:
    """Whether a file is a camera's, by its extension: most are TIFFs that show Pillow a thumbnail."""
    return _ends_in(source, RAW)


def is_known_by_name(source: Source) -> bool:
    """Whether a file's extension decides how it is opened, or what is said where it cannot be."""
    return any(_ends_in(source, extra) for extra in (RAW, HEIC, JXL))


def _ends_in(source: Source, extra: Extra) -> bool:
    return isinstance(source, str | Path) and str(source).lower().endswith(extra.extensions)


def raw_sizes(source: Source) -> tuple[tuple[int, int], tuple[int, int]]:
    """Width and height of a camera file as stored and upright, without developing it. Raises OSError."""
    with _opened_raw(source) as raw:
        width, height = raw.sizes.width, raw.sizes.height
        return (width, height), (height, width) if raw.sizes.flip in _TURNED else (width, height)


def _developed(source: Source) -> Image.Image:
    """A camera file in 8-bit sRGB, upright, with the camera's white balance."""
    with _opened_raw(source) as raw:
        # LibRaw's defaults scale brightness by each image's own maximum: here one mapping holds for all.
        return Image.fromarray(raw.postprocess(use_camera_wb=True, no_auto_bright=True, adjust_maximum_thr=0.0))


@contextmanager
def _opened_raw(source: Source) -> Iterator[Any]:
    """rawpy's object of a camera file. Its errors become OSErrors, as Pillow's are."""
    if not RAW.register():
        raise UnidentifiedImageError(f"such images need an extra: {RAW.advice}")
    import rawpy

    try:
        with rawpy.imread(str(source)) as raw:  # which has read the header alone
            stored = raw.sizes.raw_width * raw.sizes.raw_height
            if max(stored, raw.sizes.width * raw.sizes.height) > most_pixels():
                raise Image.DecompressionBombError(f"{stored:,} pixels are more than {most_pixels():,.0f}")
            yield raw
    except rawpy.LibRawError as error:
        raise OSError(f"LibRaw: {error}") from None
