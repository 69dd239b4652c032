"""Embedded colour profiles: images in another colour space than sRGB are converted to it."""

import io
from functools import lru_cache
from typing import Literal

import numpy as np
from PIL import Image, ImageCms

SAME = 2  # of 255: profiles that move no colour further are sRGB under another name or in rounded numbers
KEPT = 64  # profiles whose transform is kept; a set seldom has more than a few
_MODES = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK"}  # Pillow's modes of the colour spaces that are honoured

Profile = Literal["none", "sRGB", "converted", "ignored"]


def profile_of(image: Image.Image) -> Profile:
    """The effect of an image's embedded profile: "ignored" ones are damaged, or of another kind of image."""
    profile = image.info.get("icc_profile")
    if not profile:
        return "none"
    transform = _transform(bytes(profile))
    if transform is None or not _fits(image.mode, transform.input_mode):
        return "ignored"
    return "sRGB" if _is_srgb(bytes(profile)) else "converted"


def in_srgb(image: Image.Image) -> Image.Image:
    """An 8-bit image in sRGB; itself where it has no profile, or one that changes nothing or cannot be used."""
    if profile_of(image) != "converted":
        return image
    transform = _transform(bytes(image.info["icc_profile"]))
    assert transform is not None
    if transform.input_mode != image.mode:
        image = image.convert("RGBA").convert("RGB") if image.mode == "P" else image.convert(transform.input_mode)
    converted: Image.Image = transform.apply(image)
    return converted


def _fits(mode: str, wanted: str) -> bool:
    """Whether a profile for one of Pillow's modes says what the colours of an image in another mode are."""
    colours = ("RGB", "RGBA", "RGBX", "P")
    greys = ("L", "LA", "1")
    return mode == wanted or (wanted == "RGB" and mode in colours + greys) or (wanted == "L" and mode in greys)


@lru_cache(KEPT)
def _transform(profile: bytes) -> ImageCms.ImageCmsTransform | None:
    """The transform to sRGB; None for a profile that is damaged or of another colour space."""
    try:
        opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        mode = _MODES[opened.profile.xcolor_space.strip()]
        srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
        return ImageCms.ImageCmsTransform(opened, srgb, mode, "RGB")
    except (KeyError, OSError, ValueError, TypeError, ImageCms.PyCMSError):
        return None


@lru_cache(KEPT)
def _is_srgb(profile: bytes) -> bool:
    """Whether a profile leaves colours as they are."""
    transform = _transform(profile)
    if transform is None or transform.input_mode == "CMYK":
        return False
    steps = np.linspace(0, 255, 18).round().astype(np.uint8)
    grid = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(18, -1, 3)
    if transform.input_mode == "L":
        grid = steps[None, :, None].repeat(3, axis=2)
    seen = Image.fromarray(grid if transform.input_mode == "RGB" else grid[..., 0])
    return int(np.abs(np.asarray(transform.apply(seen)).astype(int) - grid).max()) <= SAME
