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
except ImportError:  # torchvision plans to move decoding to another package
    decode_jpeg = None  # type: ignore[assignment]

UPRIGHT = 1  # of EXIF's orientations


def pixels(source: Source) -> np.ndarray | None:
    """Decode an upright JPEG in colour or grey, bit-exact with `excb.images.decoding.open_image`.

    Both decoders are libjpeg-turbo's. Pixels may differ by rounding where they are built from different versions of it.
    A stream is read from its beginning and left open.

    Returns:
        RGB [H, W, 3] uint8, or None where the file is damaged or anything else: `open_image` then handles it.
    """
    if decode_jpeg is None:
        return None
    try:
        if isinstance(source, (str, Path)):
            refuse_special(source)
            with Path(source).open("rb") as stream:
                return pixels(stream)
        with warnings.catch_warnings(action="ignore"), Image.open(source) as image:
            # Not subclasses, such as stereo cameras' files. So far Pillow has read no more than the header.
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
