"""Images side by side: where each lies, captions and titles, and mistakes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import excb
from excb.errors import UserError

COLOURS = [(255, 0, 0), (0, 160, 0), (0, 0, 255), (200, 120, 0), (90, 0, 200)]


def plain(colour: tuple[int, int, int], width: int = 20, height: int = 20) -> Image.Image:
    return Image.new("RGB", (width, height), colour)


def colours_in(grid: Image.Image) -> list[tuple[int, int, int]]:
    """Colours of the squares, in reading order: of each connected block of a full colour its top-left pixel."""
    pixels = np.asarray(grid)
    found = {}
    for colour in COLOURS:
        rows, columns = np.nonzero((pixels == colour).all(-1))
        if len(rows):
            found[colour] = (int(rows.min()), int(columns.min()))
            assert (int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1) == (16, 16)
    return sorted(found, key=lambda colour: found[colour])


def test_images_fill_rows_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "last.png"
    plain(COLOURS[4]).save(file)
    images = [plain(COLOURS[0]), np.asarray(plain(COLOURS[1])), plain(COLOURS[2]), plain(COLOURS[3]), file]
    grid = excb.image_grid(images, columns=2, side=16)
    assert colours_in(grid) == COLOURS
    assert grid.size == (6 + 2 * 22, 6 + 3 * 22)
    assert excb.image_grid(images[:2], columns=8, side=16).size == (6 + 2 * 22, 6 + 22)


def test_the_centre_of_an_oblong_image_is_shown() -> None:
    wide = Image.new("RGB", (60, 20), "white")
    wide.paste(COLOURS[0], (20, 0, 40, 20))
    pixels = np.asarray(excb.image_grid([wide], side=16))[6:22, 6:22]
    assert (pixels[:, 4:12] == COLOURS[0]).all()


def test_titles_stand_above_their_images_and_captions_below() -> None:
    groups = {"first": [plain(COLOURS[0]), plain(COLOURS[1])], "second": [plain(COLOURS[2])]}
    bare = excb.image_grid([plain(COLOURS[0])], side=16)
    titled = excb.image_grid(groups, side=16)
    assert colours_in(titled) == COLOURS[:3]
    pixels = np.asarray(titled)
    first_row = int(np.nonzero((pixels == COLOURS[0]).all(-1))[0].min())
    assert (pixels[:first_row] < 128).any()
    assert first_row > 6
    captioned = excb.image_grid([plain(COLOURS[0])], captions=["two\nlines"], side=16)
    assert captioned.height == bare.height + 2 * 16
    assert (np.asarray(captioned)[22:] < 128).any()


def test_long_and_odd_texts_stay_in_their_place() -> None:
    text = "a name that is far too long é Ω Ж \udcff $x$"
    grid = np.asarray(excb.image_grid([plain(COLOURS[0])] * 2, captions=[text, ""], side=64))
    ink = np.nonzero((grid[70:] < 128).any(-1))[1]
    assert ink.min() >= 6
    assert ink.max() < 6 + 64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: excb.image_grid([]), "there are no images"),
        (lambda: excb.image_grid({"empty": []}), "there are no images"),
        (lambda: excb.image_grid("photo.png"), "takes a list of images"),
        (lambda: excb.image_grid({"one": plain(COLOURS[0])}), "takes a list of images"),  # type: ignore[dict-item]
        (lambda: excb.image_grid([plain(COLOURS[0])], captions=["a", "b"]), "2 captions for 1 image: pass"),
        (lambda: excb.image_grid([plain(COLOURS[0])], columns=0), "columns=0"),
        (lambda: excb.image_grid(["nowhere.png"]), r"nowhere\.png cannot be read"),
    ],
)
def test_mistakes(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()
