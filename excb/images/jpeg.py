"""JPEG files straight to arrays: torchvision's decoder where it gives Pillow's pixels, in less time."""

import warnings
from pathlib import Path
from typing import cast

import numpy as np
import torch
from PIL import ExifTags, Image
from PIL.JpegImagePlugin import JpegImageFile

from excb.files.regular import refuse_special
from excb.images.decoding import DAMAGE, Source

try:
    from torchvision.io import ImageReadMode, decode_jpeg
except ImportError:  # torchvision means to leave decoding to another package one day
    decode_jpeg = None  # type: ignore[assignment]

UPRIGHT = 1  # of EXIF's orientations


def pixels(source: Source) -> np.ndarray | None:
    """Decode an upright JPEG in colour or grey as `excb.images.decoding.open_image` does, to the bit.

    Both decoders are libjpeg-turbo's; with builds of different versions of it, pixels may differ by rounding.

    Args:
        source: any file, or a stream, which is read from its beginning and left open.

    Returns:
        RGB [H, W, 3] uint8, or None where the file is anything else, or damaged: `open_image` then knows what to do.
    """
    if decode_jpeg is None:
        return None
    try:
        if isinstance(source, (str, Path)):
            refuse_special(source)
            with Path(source).open("rb") as stream:
                return pixels(stream)
        with warnings.catch_warnings(action="ignore"), Image.open(source) as image:
            # Not its subclasses, as of stereo cameras' files. What Pillow only looks at so far is a few lines of bytes.
            plain = type(image) is JpegImageFile and image.mode in ("RGB", "L")
            if not plain or image.getexif().get(ExifTags.Base.Orientation, UPRIGHT) != UPRIGHT:
                return None
            source.seek(0)
            coded = torch.frombuffer(bytearray(source.read()), dtype=torch.uint8)
            decoded = cast(torch.Tensor, decode_jpeg(coded, ImageReadMode.RGB))
            array: np.ndarray = decoded.permute(1, 2, 0).numpy()
            return array
    except DAMAGE:
        return None
