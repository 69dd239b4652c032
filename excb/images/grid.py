"""Images side by side in one picture: what a search found, or what a cluster holds."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from PIL import Image, ImageDraw, ImageFont, ImageOps

from excb.charts.style import drawable
from excb.console import plural
from excb.errors import UserError, require
from excb.images.picture import as_rgb, is_picture

_GAP, _LINE, _POINTS = 6, 16, 12  # pixels: between cells, of a line of text, of its type
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def image_grid(
    images: "Sequence[Any] | Mapping[str, Sequence[Any]]",
    *,
    captions: Sequence[str] | None = None,
    columns: int = 8,
    side: int = 112,
) -> Image.Image:
    """Put images side by side in one picture, which a notebook displays and `.save(FILE)` writes.

    ::

        matches = embeddings.search("query.jpg", k=8)
        excb.image_grid([f"photos/{match.path}" for match in matches], captions=[match.path for match in matches])

    Args:
        images: PIL images, uint8 arrays [H, W, 3] or files; or a mapping of titles to such sequences, each of which is
            shown below its title.
        captions: a text for each image, shown below it; every line of it is shortened to the image's width.
        columns: images in a row; further ones go into the next row.
        side: pixels of every image's square, which shows the central part of an image that is not square.

    Returns:
        An RGB image, white between the images.

    Raises:
        UserError: there are no images, one cannot be read, or captions and images do not match.
    """
    require(columns >= 1 and side >= 8, f"columns={columns}, side={side}: a grid needs a column, and 8 pixels an image")
    groups = images if isinstance(images, Mapping) else {"": images}
    for given in groups.values():
        if is_picture(given) or not isinstance(given, Sequence):
            raise UserError("a grid takes a list of images, or a mapping of titles to lists of images")
    count = sum(map(len, groups.values()))
    require(count > 0, "there are no images to show")
    texts = [""] * count if captions is None else [drawable(text) for text in captions]
    require(len(texts) == count, f"{plural(len(texts), 'caption')} for {plural(count, 'image')}: pass one for each")

    shown = max(len(given) for given in groups.values())
    width = _GAP + min(columns, shown) * (side + _GAP)
    below = _LINE * max(text.count("\n") + 1 for text in texts) if any(texts) else 0
    heights = [
        (_LINE + _GAP if title else 0) + -(-len(given) // columns) * (side + below + _GAP)
        for title, given in groups.items()
    ]
    grid = Image.new("RGB", (width, _GAP + sum(heights)), "white")
    draw, top, number = ImageDraw.Draw(grid), _GAP, 0
    for (title, given), height in zip(groups.items(), heights, strict=True):
        first = top
        if title:
            draw.text((_GAP, first), _shortened(drawable(title), width - 2 * _GAP), fill="black", font=_font())
            first += _LINE + _GAP
        for place, picture in enumerate(given):
            row, column = divmod(place, columns)
            left, upper = _GAP + column * (side + _GAP), first + row * (side + below + _GAP)
            grid.paste(ImageOps.fit(as_rgb(picture), (side, side), Image.Resampling.BICUBIC), (left, upper))
            for line, text in enumerate(texts[number].split("\n")):
                draw.text((left, upper + side + line * _LINE), _shortened(text, side), fill="black", font=_font())
            number += 1
        top += height
    return grid


@cache
def _font() -> ImageFont.FreeTypeFont:
    """The type of all other figures: it has accents, Greek and Cyrillic."""
    from matplotlib.font_manager import FontProperties, findfont

    return ImageFont.truetype(findfont(FontProperties(family="DejaVu Sans")), _POINTS)


def _shortened(text: str, width: int) -> str:
    """A line of text that fits into a number of pixels."""
    if _font().getlength(text) <= width:
        return text
    while text and _font().getlength(text + _ELLIPSIS) > width:
        text = text[:-1]
    return text.rstrip() + _ELLIPSIS
