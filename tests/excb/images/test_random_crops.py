"""Boxes of random crops against torchvision: as many of each, the same fallback; both ways to draw agree."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import RandomResizedCrop

from excb.images.random_crops import ATTEMPTS, BOX_DRAWS, Box, crop_box, draw_crop_box

LEAST_P = 1e-3  # inputs are fixed: a test that passes once passes always

Boxes = Callable[[int, tuple[int, int], tuple[float, float], tuple[float, float]], list[Box]]


def prepared(count: int, size: tuple[int, int], scales: tuple[float, float], ratios: tuple[float, float]) -> list[Box]:
    """Boxes of numbers drawn in advance, as left, top, width, height."""
    numbers = np.random.default_rng(0).random((count, BOX_DRAWS))
    boxes = (crop_box(size, scales, ratios, draws) for draws in numbers.tolist())
    return [(left, top, right - left, bottom - top) for left, top, right, bottom in boxes]


def drawn(count: int, size: tuple[int, int], scales: tuple[float, float], ratios: tuple[float, float]) -> list[Box]:
    """Boxes drawn from one generator, as left, top, width, height."""
    random = np.random.default_rng(0)
    boxes = (draw_crop_box(size, scales, ratios, random) for _ in range(count))
    return [(left, top, right - left, bottom - top) for left, top, right, bottom in boxes]


both_ways = pytest.mark.parametrize("our_boxes", [prepared, drawn])


@cache
def torchvision_boxes(
    count: int, size: tuple[int, int], scales: tuple[float, float], ratios: tuple[float, float]
) -> list[Box]:
    image = torch.empty(3, size[1], size[0], device="meta")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        boxes = [RandomResizedCrop.get_params(image, list(scales), list(ratios)) for _ in range(count)]
    return [(left, top, width, height) for top, left, height, width in boxes]


BYOL, TINY, WIDE = (3 / 4, 4 / 3), (0.05, 0.2), (0.2, 1.0)


@both_ways
@pytest.mark.parametrize(
    ("size", "scales", "ratios"),
    [
        ((5000, 4000), WIDE, BYOL),
        ((5000, 4000), TINY, BYOL),
        ((4000, 6000), (0.14, 1.0), BYOL),
        ((2000, 6000), WIDE, BYOL),  # many attempts fail
        ((6000, 2000), (0.5, 1.0), BYOL),  # most fail
        ((4000, 4000), (0.08, 0.5), (0.2, 5.0)),
    ],
)
def test_crops_are_distributed_as_torchvisions(
    our_boxes: Boxes, size: tuple[int, int], scales: tuple[float, float], ratios: tuple[float, float]
) -> None:
    ours, theirs = (np.array(boxes(3000, size, scales, ratios)) for boxes in (our_boxes, torchvision_boxes))
    for boxes in (ours, theirs):
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, :2] + boxes[:, 2:] <= size).all()
        assert (boxes[:, 2:] > 0).all()

    def figures(boxes: np.ndarray) -> dict[str, np.ndarray]:
        left, top, width, height = boxes.T.astype(float)
        return {
            "share of the area": width * height / (size[0] * size[1]),
            "log ratio": np.log(width / height),
            "left": left / np.maximum(1, size[0] - width),
            "top": top / np.maximum(1, size[1] - height),
            "width": width,
        }

    others = figures(theirs)
    for name, values in figures(ours).items():
        assert stats.ks_2samp(values, others[name]).pvalue > LEAST_P, name


@both_ways
@pytest.mark.parametrize("scales", [WIDE, TINY])
def test_crops_that_always_fit_have_uniform_area_and_log_ratio(our_boxes: Boxes, scales: tuple[float, float]) -> None:
    scales = (scales[0], min(scales[1], 0.7))  # 0.7 of a square fits at any ratio up to 4 / 3
    boxes = np.array(our_boxes(3000, (9000, 9000), scales, BYOL)).astype(float)
    share, log_ratio = boxes[:, 2] * boxes[:, 3] / 9000**2, np.log(boxes[:, 2] / boxes[:, 3])
    assert stats.kstest(share, stats.uniform(scales[0], scales[1] - scales[0]).cdf).pvalue > LEAST_P
    assert stats.kstest(log_ratio, stats.uniform(-math.log(4 / 3), 2 * math.log(4 / 3)).cdf).pvalue > LEAST_P
    left, top = (boxes[:, axis] / (9000 - boxes[:, 2 + axis]) for axis in (0, 1))
    table = np.array([share, log_ratio, left, top])
    assert np.abs(np.asarray(np.corrcoef(table))[np.triu_indices(4, 1)]).max() < 4 / math.sqrt(3000)


@both_ways
@pytest.mark.parametrize(
    ("size", "scales"), [((7, 5), WIDE), ((4, 4), TINY), ((3, 9), WIDE), ((9, 3), TINY), ((2, 2), WIDE), ((8, 1), WIDE)]
)
def test_every_box_of_a_small_image_is_as_likely_as_torchvisions(
    our_boxes: Boxes, size: tuple[int, int], scales: tuple[float, float]
) -> None:
    """Rounding, rejection and places: a table of all boxes."""
    ours, theirs = (boxes(4000, size, scales, BYOL) for boxes in (our_boxes, torchvision_boxes))
    kinds = sorted({*ours, *theirs})
    table = np.array([[boxes.count(kind) for kind in kinds] for boxes in (ours, theirs)])
    rare = table.sum(0) < 20
    table = np.concatenate([table[:, ~rare], table[:, rare].sum(1, keepdims=True)], axis=1)
    table = table[:, table.sum(0) > 0]
    assert table.shape[1] == 1 or stats.chi2_contingency(table).pvalue > LEAST_P


@both_ways
@pytest.mark.parametrize(
    "size", [(1000, 10), (10, 1000), (1000, 11), (37, 1000), (1000, 700), (700, 1000), (500, 500), (1, 900), (900, 1)]
)
@pytest.mark.parametrize("ratios", [BYOL, (1.0, 1.0), (0.9, 2.1)])
def test_where_no_crop_fits_the_centre_is_torchvisions(
    our_boxes: Boxes, size: tuple[int, int], ratios: tuple[float, float]
) -> None:
    # Crops of four times the area never fit.
    expected = torchvision_boxes(1, size, (4.0, 4.0), ratios)
    assert our_boxes(1, size, (4.0, 4.0), ratios) == expected


def test_the_first_attempt_that_fits_is_taken() -> None:
    draws = np.full(BOX_DRAWS, 0.5)
    draws[:6:2] = 1  # the whole area of a wide image fits at no ratio near 1: three attempts fail
    draws[6:8] = 0.25, 0.5
    draws[8:10] = 0.75, 0.1  # not reached
    side = round(math.sqrt(0.4 * 800 * 400))
    left, top = (800 - side + 1) // 2, (400 - side + 1) // 2
    assert crop_box((800, 400), WIDE, BYOL, draws.tolist()) == (left, top, left + side, top + side)


@pytest.mark.parametrize("last", [0.0, 1 - 2**-53])
def test_places_reach_both_edges(last: float) -> None:
    draws = np.full(BOX_DRAWS, 0.5)
    draws[-2:] = last
    left, top, right, bottom = crop_box((90, 80), (0.25, 0.25), BYOL, draws.tolist())
    assert (left, top) == (0, 0) if last == 0 else (right, bottom) == (90, 80)


def test_drawing_takes_no_more_numbers_than_it_needs() -> None:
    """The stream of a (seed, epoch, image) that the transfer protocols depend on."""
    random, again = np.random.default_rng(5), np.random.default_rng(5)
    left, top, right, bottom = draw_crop_box((4000, 3000), (0.2, 0.4), (1.0, 1.0), random)
    share, _ = again.random(), again.random()
    side = round(math.sqrt((0.2 + 0.2 * share) * 12e6))
    assert (right - left, bottom - top) == (side, side)
    assert left == int(again.integers(4000 - side + 1))
    assert top == int(again.integers(3000 - side + 1))
    assert random.random() == again.random()


def test_a_box_that_never_fits_takes_two_numbers_an_attempt() -> None:
    random, again = np.random.default_rng(5), np.random.default_rng(5)
    assert draw_crop_box((400, 300), (4.0, 4.0), (1.0, 1.0), random) == (50, 0, 350, 300)
    again.random(2 * ATTEMPTS)
    assert random.random() == again.random()
