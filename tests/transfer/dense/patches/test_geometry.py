"""Tests of the parts of an image that pass through the network."""

from typing import Any

import numpy as np
import pytest

from excb.errors import UserError
from excb.transfer.dense.patches.geometry import Geometry


def test_the_whole_image_and_the_central_square() -> None:
    assert Geometry("resize", 32, 32, 16).boxes(50, 41) == [(0, 0, 50, 41)]
    assert Geometry("crop", 32, 32, 16).boxes(50, 40) == [(5, 0, 45, 40)]
    assert Geometry("crop", 32, 64, 16).boxes(100, 128) == [(25, 39, 75, 89)]


@pytest.mark.parametrize(("width", "height"), [(64, 64), (100, 64), (64, 97), (201, 333), (1, 1), (3, 500)])
@pytest.mark.parametrize(("short", "step"), [(32, 21), (32, 32), (48, 20), (80, 7)])
def test_windows_are_squares_inside_the_image_that_cover_it(width: int, height: int, short: int, step: int) -> None:
    covered = np.zeros((height, width), bool)
    boxes = Geometry("window", 32, short, step).boxes(width, height)
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        assert right - left == bottom - top
        covered[top:bottom, left:right] = True
    assert covered.all()
    assert len(set(boxes)) == len(boxes)


def test_windows_of_a_size_by_hand() -> None:
    boxes = Geometry("window", 32, 32, 21).boxes(64, 32)  # as MMSegmentation's slide mode: 0, 21, and 32 at the border
    assert [box[0] for box in boxes] == [0, 21, 32]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("slide", 32, 32, 16), "--mode is resize, crop, window"),
        (("crop", 4, 32, 2), "--size 4"),
        (("crop", 32, 16, 16), "--resize 16 is below --size 32"),
        (("window", 32, 64, 0), "--step 0"),
        (("window", 32, 64, 33), "--step 33"),
    ],
)
def test_sizes_out_of_range_are_refused(values: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Geometry(*values)


def test_only_sizes_with_an_effect_define_it() -> None:
    assert Geometry("resize", 32, 40, 16).to_dict() == Geometry("resize", 32, 64, 3).to_dict()
    assert Geometry("crop", 32, 40, 16).to_dict() == {"mode": "crop", "side": 32, "short": 40}
    assert set(Geometry("window", 32, 40, 16).to_dict()) == {"mode", "side", "short", "step"}
