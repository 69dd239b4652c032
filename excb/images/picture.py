"""Images as a caller passes them: a PIL image, an array of 8-bit pixels, or the path of a file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from excb.console import plural
from excb.errors import UserError
from excb.images import depth
from excb.images.decoding import BrokenImageError, open_image, to_rgb
from excb.images.pixels import EIGHT_BIT, Pixels, PixelsError

_BY_HAND = "backbone.transform = backbone.transform.with_range('0..4095')"

Picture = Image.Image | np.ndarray | str | Path


def is_picture(value: object) -> bool:
    """Whether a value is one image, not several or something else."""
    return isinstance(value, Image.Image | str | os.PathLike) or (isinstance(value, np.ndarray) and value.ndim <= 3)


def as_rgb(picture: Any, pixels: Pixels = EIGHT_BIT) -> Image.Image:
    """A picture as an 8-bit RGB image: a file upright, a PIL image and an array as they are.

    Args:
        picture: a PIL image of any mode, uint8 pixels [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], or a file's path.
        pixels: whether an embedded profile is honoured.

    Raises:
        UserError: it is something else, or a file that is not a readable image.
    """
    if isinstance(picture, Image.Image):
        try:
            return to_rgb(picture, pixels if pixels.plain else EIGHT_BIT)
        except PixelsError as error:
            raise UserError(f"an image in memory: {error}; in Python: {_BY_HAND}") from None
    if isinstance(picture, str | os.PathLike):
        image: Image.Image = _from_file(os.fspath(picture), pixels if pixels.plain else EIGHT_BIT)
        return image
    if isinstance(picture, np.ndarray):
        return to_rgb(Image.fromarray(_pixels(picture)))
    kind = f"{type(picture).__module__}.{type(picture).__qualname__}".removeprefix("builtins.")
    hint = ""
    if isinstance(picture, list | tuple):
        hint = ": pass several to backbone.embed(images)"
    elif isinstance(picture, bytes | bytearray | memoryview):
        hint = ": open it with PIL.Image.open(io.BytesIO(...))"
    elif kind.startswith("torch."):
        hint = ": normalised tensors [B, 3, H, W] go into backbone(tensors) as they are"
    raise UserError(f"an image is a PIL image, a uint8 array [H, W, 3] or the path of a file, not a {kind}{hint}")


def visible_rgb(image: Image.Image | np.ndarray) -> Image.Image:
    """An opened image for people: as it is in RGB; of other channels the first three, or the first alone as grey."""
    if isinstance(image, Image.Image):
        return image
    return to_rgb(Image.fromarray(image[..., :3] if image.shape[-1] >= len("RGB") else image[..., 0]))


def each_channel(
    image: Image.Image | np.ndarray, change: Callable[[Image.Image], Image.Image]
) -> Image.Image | np.ndarray:
    """An RGB image after a change, or pixels [H, W, C] after the same change of every channel as a grey image."""
    if isinstance(image, Image.Image):
        return change(image)
    planes = [np.asarray(change(Image.fromarray(image[..., channel]))) for channel in range(image.shape[-1])]
    return np.stack(planes, axis=-1)


def _from_file(file: str, pixels: Pixels) -> Any:
    if os.path.isdir(file):  # noqa: PTH112 - a path may hold what pathlib refuses
        raise UserError(f"{file} is a folder, and an image is needed: name its files, or use excb.embed")
    try:
        return open_image(file, pixels)
    except PixelsError as error:
        raise UserError(f"{file}: {error}; in Python: {_BY_HAND}") from None
    except BrokenImageError as error:
        raise UserError(f"{file} cannot be read as an image ({error}): fix it, or leave it out") from None


def as_channels(picture: Any, pixels: Pixels) -> Image.Image | np.ndarray:
    """A picture as the 8-bit channels of a record of pixels: RGB, or uint8 [H, W, C] for other than three.

    Args:
        picture: the path of a file, or a PIL image or an array [H, W, C] or [H, W] of more than 8 bits, whose values
            are mapped; or others of 8 bits, which are channels already.
        pixels: how stored values become channels.

    Raises:
        UserError: it is something else, or has other channels.
    """
    if pixels.plain:
        return as_rgb(picture, pixels)
    if isinstance(picture, Image.Image):
        try:
            channels = depth.mapped(picture, pixels)
        except PixelsError as error:
            raise UserError(f"an image in memory cannot be used: {error}") from None
        return Image.fromarray(channels) if pixels.channels == len("RGB") else channels
    if isinstance(picture, str | os.PathLike):
        opened: Image.Image | np.ndarray = _from_file(os.fspath(picture), pixels)
        return opened
    if isinstance(picture, np.ndarray) and picture.dtype != np.uint8 and picture.dtype.kind in "iuf" and pixels.deep:
        return _mapped_array(picture, pixels)
    if pixels.channels == len("RGB") or not isinstance(picture, np.ndarray):
        return as_rgb(picture)
    array = picture[..., None] if picture.ndim == 2 else picture
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[-1] != pixels.channels or 0 in array.shape:
        raise UserError(
            f"an image of {plural(pixels.channels, 'channel')} is uint8 pixels [H, W, {pixels.channels}], or the path "
            f"of a file, not {picture.dtype} {list(picture.shape)}"
        )
    return array


def _mapped_array(array: np.ndarray, pixels: Pixels) -> Image.Image | np.ndarray:
    """Channels of an array of more than 8 bits. Raises UserError for other axes or channels."""
    try:
        if array.ndim not in (2, 3) or 0 in array.shape:
            raise PixelsError("it has other axes than [H, W] or [H, W, C]")
        channels = depth.channels_of(array, pixels)
    except PixelsError as error:
        raise UserError(f"{array.dtype} {list(array.shape)} is not such an image: {error}") from None
    return Image.fromarray(channels) if pixels.channels == len("RGB") else channels


def _pixels(array: np.ndarray) -> np.ndarray:
    """8-bit pixels [H, W], [H, W, 3] or [H, W, 4]. Raises UserError for an array that holds none."""
    grey = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] == 1)
    fits = (grey or (array.ndim == 3 and array.shape[-1] in (3, 4))) and 0 not in array.shape
    if array.dtype != np.uint8 or not fits:
        scale = f"scale its values to 0..255, then .astype('uint8'), or {_BY_HAND}"
        fix = scale if fits else "move its axes, or pass one image"
        raise UserError(
            "an array is an image if it holds uint8 pixels [H, W, 3], [H, W, 4], [H, W, 1] or [H, W], not "
            f"{array.dtype} {list(array.shape)}: {fix}"
        )
    return np.ascontiguousarray(array[..., 0] if array.ndim == 3 and grey else array)
