"""Detections drawn on their images: masks, boxes, names and scores; one PNG per image, and a sheet of all."""

import colorsys
import io
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from excb.files.atomic import write_bytes
from excb.results.pictures import SHEET

from ..coco.annotations import CocoSet
from ..coco.codes import decoded

LEAST, MOST = 0.5, 20  # smallest score and largest number of drawn detections
FEW = 3  # detections drawn if no score is high, as after short runs
TILE, COLUMNS, GAP = 320, 4, 6  # of the sheet; lengths in pixels
GOLDEN = 0.61803398875  # multiples of the golden ratio around the colour wheel stay distinct


def write_pictures(
    images: CocoSet, predictions: Sequence[dict[str, Any]], folder: Path, *, number: int = 8
) -> list[Path]:
    """Draw detections on images spread evenly over a set.

    Args:
        images: the set.
        predictions: COCO's result dicts with box, score and, where masks are judged, mask, in pixels of the original
            images.
        folder: for ID.png, named by the image's id, and sheet.png.
        number: of images.

    Returns:
        The files, the sheet last.

    Raises:
        UserError: an image cannot be read, or a file cannot be written.
    """
    detections = defaultdict(list)
    for result in predictions:
        detections[result["image_id"]].append(result)
    files, pictures = [], []
    for index in sorted({int(place) for place in np.linspace(0, len(images) - 1, min(number, len(images)))}):
        entry = images.images[index]
        pictures.append(draw_detections(images.open(index), detections[entry.id], images))
        files.append(_write(pictures[-1], folder / f"{entry.id}.png"))
    return [*files, _write(contact_sheet(pictures), folder / SHEET)]


def draw_detections(image: Image.Image, results: Sequence[dict[str, Any]], images: CocoSet) -> Image.Image:
    """A copy of an image with its best detections, the best on top."""
    best = sorted(results, key=lambda entry: -entry["score"])[:MOST]
    confident = [entry for entry in best if entry["score"] >= LEAST]
    shown = (confident or best[:FEW])[::-1]
    names = dict(zip(images.category_ids, images.classes, strict=True))
    colours = {number: colour(label) for label, number in enumerate(images.category_ids)}
    pixels = np.array(image, dtype=np.float32)
    for entry in shown if images.masks else ():
        inside = decoded(entry["segmentation"])
        pixels[inside] = (pixels[inside] + colours[entry["category_id"]]) / 2
    picture = Image.fromarray(pixels.astype(np.uint8))
    canvas = ImageDraw.Draw(picture)
    font = ImageFont.load_default(size=max(10, min(image.size) // 32))
    for entry in shown:
        left, top, width, height = entry["bbox"]
        shade = colours[entry["category_id"]]
        canvas.rectangle((left, top, left + width, top + height), outline=shade, width=2)
        text = f"{names[entry['category_id']]} {100 * entry['score']:.0f} %"
        place = canvas.textbbox((left + 3, max(0, top)), text, font=font)
        canvas.rectangle((place[0] - 2, place[1] - 1, place[2] + 2, place[3] + 1), fill=shade)
        canvas.text((left + 3, max(0, top)), text, fill="black", font=font)
    return picture


def contact_sheet(pictures: Sequence[Image.Image]) -> Image.Image:
    """Small copies of pictures side by side, in their order."""
    columns = min(COLUMNS, len(pictures))
    rows = -(-len(pictures) // columns)
    whole = Image.new("RGB", (columns * (TILE + GAP) + GAP, rows * (TILE + GAP) + GAP), "white")
    for number, picture in enumerate(pictures):
        small = picture.copy()
        small.thumbnail((TILE, TILE))
        row, column = divmod(number, columns)
        left, top = GAP + column * (TILE + GAP), GAP + row * (TILE + GAP)
        whole.paste(small, (left + (TILE - small.width) // 2, top + (TILE - small.height) // 2))
    return whole


def colour(label: int) -> tuple[int, int, int]:
    """A bright RGB colour for a category, on which black text is readable."""
    red, green, blue = colorsys.hls_to_rgb(label * GOLDEN % 1, 0.65, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def _write(picture: Image.Image, file: Path) -> Path:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    write_bytes(buffer.getvalue(), file)
    return file
