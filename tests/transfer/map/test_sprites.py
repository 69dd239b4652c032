"""Sprites: each picture is where its number says, within the budget, and whatever is missing is counted."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from excb.images.decoding import BrokenImageError
from excb.transfer.map.sprites import ACROSS, make_sprites


def coloured(row: int, _side: int) -> Image.Image:
    """An image whose colour and shape say its row."""
    if row == 7:
        raise BrokenImageError("gone")
    size = (300, 150) if row % 2 else (100, 200)
    return Image.new("RGB", size, (row % 16 * 15, row // 16 * 12, 100))


@pytest.mark.parametrize(("budget", "side"), [(10**7, 128), (20_000, 64)])
def test_every_picture_is_at_its_place(budget: int, side: int) -> None:
    made = make_sprites(300, coloured, budget=budget)
    assert made.side == side
    assert (made.unread, made.left) == (1, 0)
    assert np.flatnonzero(made.places < 0).tolist() == [7]
    assert sum(map(len, made.sheets)) <= budget
    sheets = [np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet)))).astype(int) for sheet in made.sheets]
    for row in set(range(300)) - {7}:
        number, (width, height) = int(made.places[row]), made.sizes[row].tolist()
        assert (width, height) == ((side, side // 2) if row % 2 else (side // 2, side))
        sheet, cell = sheets[number // ACROSS**2], number % ACROSS**2
        top, left = cell // ACROSS * side, cell % ACROSS * side
        wanted = coloured(row, side).getpixel((0, 0))
        assert np.abs(sheet[top + height // 2, left + width // 2] - wanted).max() <= 8


def test_a_small_budget_leaves_images_without_pictures() -> None:
    random = np.random.default_rng(0)
    pictures = [Image.fromarray(random.integers(0, 256, (40, 40, 3)).astype(np.uint8)) for _ in range(600)]
    assert make_sprites(256, lambda row, _: pictures[row], budget=0).sheets == []
    made = make_sprites(600, lambda row, _: pictures[row], budget=300_000)
    assert made.side == 32
    assert 0 < sum(map(len, made.sheets)) <= 300_000
    assert made.left == 600 - int((made.places >= 0).sum()) > 0
    assert np.flatnonzero(made.places >= 0).max() > 300  # spread over the set
