"""Small pictures of images on sheets, one JPEG for many of them, within a budget of bytes."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from excb.errors import UserError
from excb.images.decoding import BrokenImageError

SIDES = (128, 96, 64, 48, 32)  # longer side of a picture in pixels: multiples of JPEG's blocks, so that none bleeds
ACROSS = 16  # pictures in a row of a sheet, and rows
QUALITY = 75  # of JPEG

OpenPicture = Callable[[int, int], Image.Image]  # a row and the longer side that is wanted -> RGB, not smaller


@dataclass(frozen=True)
class Sprites:
    """Pictures of some images.

    Attributes:
        side: of each picture's square in pixels.
        sheets: JPEGs in base64, `ACROSS` x `ACROSS` squares each.
        places: int32 [N], each image's number among the squares; -1 without a picture.
        sizes: uint8 [N, 2], width and height of each picture, at the top left of its square.
        unread: images that could not be opened.
        left: images for which the budget has no room.
    """

    side: int
    sheets: list[str]
    places: np.ndarray
    sizes: np.ndarray
    unread: int
    left: int


def make_sprites(
    images: int, open_picture: OpenPicture, *, budget: int, progress: Callable[[int], None] = lambda _done: None
) -> Sprites:
    """Pictures of as many images as the budget holds, in a random order; the largest side at which all of them fit.

    Args:
        images: N.
        open_picture: opens an image; may raise UserError or BrokenImageError.
        budget: characters of base64.
        progress: called with numbers of images, N in all where none is left out.
    """
    places, sizes = np.full(images, -1, np.int32), np.zeros((images, 2), np.uint8)
    order = np.random.default_rng(0).permutation(images).tolist()
    side, sheets, spent, unread, done, square = SIDES[0], list[str](), 0, 0, 0, 0
    while order[done:] and spent < budget:
        part = order[done : done + ACROSS**2]
        opened = [_opened(open_picture, row, side) for row in part]
        if not done:
            side = _fitting_side([each for each in opened if each is not None], images, budget)
        small = {row: _shrunk(each, side) for row, each in zip(part, opened, strict=True) if each is not None}
        sheet = _sheet(list(small.values()), side)
        if spent + len(sheet) > budget:
            break
        for number, (row, picture) in enumerate(small.items()):
            places[row], sizes[row] = square + number, picture.size
        if small:
            sheets.append(sheet)
        spent, square = spent + len(sheet), ACROSS**2 * len(sheets)
        unread, done = unread + len(part) - len(small), done + len(part)
        progress(len(part))
    return Sprites(side, sheets, places, sizes, unread, images - done)


def _fitting_side(opened: list[Image.Image], images: int, budget: int) -> int:
    """The largest side at which all images fit, judged by the first of them; the smallest if none does."""
    for side in SIDES[:-1]:
        if len(_sheet([_shrunk(each, side) for each in opened], side)) * images <= budget * max(1, len(opened)):
            return side
    return SIDES[-1]


def _opened(open_picture: OpenPicture, row: int, side: int) -> Image.Image | None:
    try:
        return _shrunk(open_picture(row, side), side)
    except (UserError, BrokenImageError):
        return None


def _shrunk(image: Image.Image, side: int) -> Image.Image:
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.BICUBIC)
    return small


def _sheet(pictures: list[Image.Image], side: int) -> str:
    """A JPEG in base64; empty without pictures. Its last row may be missing, its columns are not."""
    if not pictures:
        return ""
    sheet = Image.new("RGB", (ACROSS * side, -(-len(pictures) // ACROSS) * side), "white")
    for number, picture in enumerate(pictures):
        sheet.paste(picture, (number % ACROSS * side, number // ACROSS * side))
    buffer = io.BytesIO()
    sheet.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
