"""Masks over boxes, brought to the original image, against masks that are known."""

import numpy as np
import pytest
import torch

from excb.transfer.detection.torchvision.pasting import paste, to_original


def test_a_full_mask_fills_the_pixels_whose_centres_it_covers() -> None:
    canvas = torch.zeros(20, 30, dtype=torch.bool)
    paste(canvas, torch.tensor([4.4, 2.6, 11.6, 9.4]), torch.ones(14, 14))
    expected = torch.zeros(20, 30, dtype=torch.bool)
    expected[3:9, 4:12] = True
    assert torch.equal(canvas, expected)


@pytest.mark.parametrize("box", [(2.3, 1.7, 25.2, 17.9), (0.0, 0.0, 30.0, 20.0), (7.0, 3.0, 9.5, 19.5)])
def test_pixels_are_interpolated_between_cells(box: tuple[float, ...]) -> None:
    """Each pixel by hand: its centre in the mask's cells, whose values are met in their middles, 0 beyond."""
    random = np.random.default_rng(0)
    mask = random.random((14, 14), dtype=np.float32)
    canvas = torch.zeros(20, 30, dtype=torch.bool)
    paste(canvas, torch.tensor(box), torch.from_numpy(mask))
    around = np.pad(mask, 1)
    left, top, right, bottom = box
    for row in range(20):
        for column in range(30):
            y = (row + 0.5 - top) / (bottom - top) * 14 + 0.5
            x = (column + 0.5 - left) / (right - left) * 14 + 0.5
            value = 0.0
            if 0 <= y < 15 and 0 <= x < 15:
                i, j = int(y), int(x)
                above, below = (around[k, j] * (1 - x + j) + around[k, j + 1] * (x - j) for k in (i, i + 1))
                value = float(above * (1 - y + i) + below * (y - i))
            if abs(value - 0.5) > 1e-4:
                assert bool(canvas[row, column]) == (value > 0.5), (row, column)


def test_detections_return_to_the_original_image() -> None:
    """A detector that sees exactly what is there, in an image of another size."""
    found = {
        "boxes": torch.tensor([[10.0, 20, 30, 40], [0, 0, 50, 80], [10, 20, 10, 40]]),
        "labels": torch.tensor([1, 3, 2]),
        "scores": torch.tensor([0.9, 0.8, 0.7]),
        "masks": torch.ones(3, 1, 28, 28),
    }
    result = to_original(found, (80, 50), (160, 25))
    assert result["boxes"].tolist() == [[5, 40, 15, 80], [0, 0, 25, 160]]
    assert result["labels"].tolist() == [0, 2]
    assert result["scores"].tolist() == pytest.approx([0.9, 0.8])
    assert result["masks"].shape == (2, 160, 25)
    assert result["masks"].sum((1, 2)).tolist() == [10 * 40, 25 * 160]
    assert result["masks"][0, 40:80, 5:15].all()


def test_nothing_is_found() -> None:
    none = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "scores": torch.zeros(0)}
    result = to_original(none | {"masks": torch.zeros(0, 1, 14, 14)}, (80, 50), (160, 25))
    assert result["masks"].shape == (0, 160, 25)
