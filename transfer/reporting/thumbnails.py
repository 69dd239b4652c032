"""Small pictures of images for pages, as data that a page holds."""

import base64
import io

from PIL import Image

SIDE, QUALITY = 220, 75  # longer side in pixels, for screens of two dots a pixel too; of JPEG


def thumbnail(image: Image.Image, *, side: int = SIDE) -> str:
    """A whole image as a small JPEG without metadata, as the text of a data address."""
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=QUALITY, optimize=True, exif=b"", icc_profile=None)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
