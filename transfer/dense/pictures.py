"""A sheet of test images, their masks and what heads predicted; one row per image."""

import io
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from excb.results.pictures import PROGRAM

from .layouts.masks import IGNORED

TILE, GAP, HEADER = 224, 6, 22  # pixels
ROWS = 8
_VOID = (224, 224, 192)  # of pixels without a class


def colours(classes: int) -> np.ndarray:
    """Pascal VOC's colours [C, 3] uint8: class 0 is black, and all of 256 classes differ."""
    numbers = np.arange(classes)
    table = np.zeros((classes, 3), np.int64)
    for bit in range(8):
        for channel in range(3):
            table[:, channel] |= ((numbers >> (3 * bit + channel)) & 1) << (7 - bit)
    return table.astype(np.uint8)


def painted(mask: np.ndarray, palette: np.ndarray) -> Image.Image:
    """A mask [H, W] in colours."""
    return Image.fromarray(np.concatenate([palette, np.array([_VOID], np.uint8)])[np.where(mask == IGNORED, -1, mask)])


def spread(images: int) -> list[int]:
    """The images of a sheet, evenly spread over a set."""
    return sorted({int(place) for place in np.linspace(0, images - 1, min(ROWS, images))})


def mask_sheet(rows: Sequence[tuple[Image.Image, Mapping[str, np.ndarray]]], classes: int) -> bytes:
    """A PNG with an image and its masks in each row, and the masks' titles above.

    Args:
        rows: images, each with its masks [H, W] by title: the same titles in every row.
        classes: C.
    """
    titles, palette = ["image", *rows[0][1]], colours(classes)
    size = (len(titles) * (TILE + GAP) + GAP, len(rows) * (TILE + GAP) + GAP + HEADER)
    whole = Image.new("RGB", size, "white")
    canvas, font = ImageDraw.Draw(whole), ImageFont.load_default(size=14)
    for column, title in enumerate(titles):
        canvas.text((GAP + column * (TILE + GAP), 3), title, fill="black", font=font)
    for number, (image, masks) in enumerate(rows):
        cells = [image, *(painted(mask, palette) for mask in masks.values())]
        for column, cell in enumerate(cells):
            kind = Image.Resampling.NEAREST if column else Image.Resampling.BILINEAR
            small = cell.resize(_fit(cell.size), kind)
            left, top = GAP + column * (TILE + GAP), HEADER + GAP + number * (TILE + GAP)
            whole.paste(small, (left + (TILE - small.width) // 2, top + (TILE - small.height) // 2))
    buffer = io.BytesIO()
    facts = PngInfo()
    facts.add_text("Software", PROGRAM)  # by which a command knows a picture that it may replace
    whole.save(buffer, "PNG", pnginfo=facts)
    return buffer.getvalue()


def _fit(size: tuple[int, int]) -> tuple[int, int]:
    scale = TILE / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
