"""Tests of predicted masks: one class per pixel from scores of patches."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from excb.transfer.dense import segmentation
from excb.transfer.dense.segmentation import predicted


@pytest.mark.parametrize("at_once", [1, 2**24])
def test_overlapping_views_are_added_up(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmentation, "_AT_ONCE", at_once)
    scores = torch.randn(2, 5, 3, 3, generator=torch.Generator().manual_seed(0))
    boxes = [(0, 0, 12, 12), (6, 0, 18, 12)]
    canvas = torch.zeros(5, 14, 20)
    for view, (left, top, right, bottom) in zip(scores, boxes, strict=True):
        canvas[:, top:bottom, left:right] += F.interpolate(view[None], (12, 12), mode="bilinear", align_corners=False)[
            0
        ]
    expected = canvas.argmax(0).numpy()
    expected[12:] = expected[:, 18:] = -1  # no view is there
    assert (predicted(scores, boxes, 14, 20, "bilinear") == expected).all()


def test_nearest_gives_whole_patches() -> None:
    scores = torch.eye(4).view(1, 4, 2, 2)  # patch p has class p
    mask = predicted(scores, [(0, 0, 6, 4)], 4, 6, "nearest")
    assert (mask == np.array([[0, 0, 0, 1, 1, 1]] * 2 + [[2, 2, 2, 3, 3, 3]] * 2)).all()


def test_of_equal_scores_the_first_class_counts(monkeypatch: Any) -> None:
    monkeypatch.setattr(segmentation, "_AT_ONCE", 1)
    assert (predicted(torch.zeros(1, 3, 2, 2), [(0, 0, 4, 4)], 4, 4, "bilinear") == 0).all()
