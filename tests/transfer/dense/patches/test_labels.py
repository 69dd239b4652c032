"""Tests of the classes of patches, against a loop over pixels."""

from pathlib import Path

import numpy as np
import pytest

from excb.transfer.dense.layouts import folders
from excb.transfer.dense.patches.features import Grid
from excb.transfer.dense.patches.geometry import Geometry
from excb.transfer.dense.patches.labels import PatchLabels, pixels_by_patch
from excb.transfer.dense.patches.views import Views
from tests.transfer.dense.masked_images import write_set


@pytest.mark.parametrize(("side", "height", "width"), [(12, 3, 3), (13, 4, 3), (7, 7, 2), (5, 1, 1)])
def test_pixels_are_counted_as_by_a_loop(side: int, height: int, width: int) -> None:
    mask = np.random.default_rng(side).integers(-1, 4, (side, side))
    expected = np.zeros((height * width, 4), np.int64)
    for row in range(side):
        for column in range(side):
            if mask[row, column] >= 0:
                expected[(row * height // side) * width + column * width // side, mask[row, column]] += 1
    assert (pixels_by_patch(mask, height, width, 4) == expected).all()


def test_shares_are_those_of_every_patch_in_any_order(tmp_path: Path) -> None:
    views = Views(folders.LAYOUT.open(write_set(tmp_path / "set"), "train"), Geometry("resize", 30, 30, 15), "bilinear")
    grid = Grid(30, 30, 1, 1)  # a patch is a pixel: those of the border have no class
    labels = PatchLabels(views, grid)
    tables = [pixels_by_patch(views.mask(view), 30, 30, 3) for view in range(len(views))]
    table = np.concatenate(tables)
    assert (labels.pixels == table.sum(0)).all()
    assert (labels.labelled() == np.flatnonzero(table.sum(1))).all()
    assert len(labels.labelled()) < len(table)
    numbers = np.random.default_rng(0).permutation(labels.labelled())[:500]
    numbers = np.concatenate([numbers, numbers[:7]])
    expected = table[numbers] / table[numbers].sum(1, keepdims=True)
    assert np.allclose(labels.shares(numbers).numpy(), expected)
    assert (labels.majority(numbers) == expected.argmax(1)).all()
