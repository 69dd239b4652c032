"""Paired tests of segmentations against loops over images, and what `compare` refuses."""

import itertools

import numpy as np
import pytest

from excb.errors import UserError
from excb.transfer.dense.comparison import Segmentations
from excb.transfer.dense.layouts.masks import IGNORED
from excb.transfer.dense.patches.metrics import Areas, areas_of, stacked

CLASSES = ("background", "leaf", "fruit")


def predicted(true: np.ndarray, wrong: float, seed: int) -> np.ndarray:
    """Masks [N, H, W] with a share of wrong pixels."""
    random = np.random.default_rng(seed)
    return np.where(random.random(true.shape) < wrong, random.integers(len(CLASSES), size=true.shape), true)


def areas(masks: np.ndarray, true: np.ndarray) -> Areas:
    return stacked([areas_of(one, other, len(CLASSES)) for one, other in zip(masks, true, strict=True)])


def miou(masks: list[np.ndarray], true: list[np.ndarray]) -> float:
    """Mean IoU of the classes that occur, written as loops over pixels of all images together."""
    shares = []
    for label in range(len(CLASSES)):
        both = sum(int(((m == label) & (t == label)).sum()) for m, t in zip(masks, true, strict=True))
        either = sum(int(((m == label) | (t == label)).sum()) for m, t in zip(masks, true, strict=True))
        if either:
            shares.append(both / either)
    return 100 * sum(shares) / len(shares)


def pair(images: int, wrong: tuple[float, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    true = np.random.default_rng(0).integers(len(CLASSES), size=(images, 4, 4))
    return true, predicted(true, wrong[0], 1), predicted(true, wrong[1], 2)


def segmentations(true: np.ndarray, *seeds: np.ndarray) -> Segmentations:
    names = [f"{number}.png" for number in range(len(true))]
    return Segmentations(names, CLASSES, {"knn_1of8": [areas(masks, true) for masks in seeds]})


FIGURE = "dense_knn_miou_1of8"


def test_the_p_value_is_the_share_of_exchanges_that_are_as_extreme() -> None:
    true, first, second = pair(8, (0.5, 0.25))
    test = segmentations(true, first).compared(FIGURE, segmentations(true, second), FIGURE)
    observed = miou(list(second), list(true)) - miou(list(first), list(true))
    extreme = 0
    for sides in itertools.product((False, True), repeat=len(true)):
        one = [b if side else a for side, a, b in zip(sides, first, second, strict=True)]
        other = [a if side else b for side, a, b in zip(sides, first, second, strict=True)]
        extreme += abs(miou(other, list(true)) - miou(one, list(true))) >= abs(observed) - 1e-9
    assert test.difference == pytest.approx(observed)
    assert (test.first, test.second) == pytest.approx((miou(list(first), list(true)), miou(list(second), list(true))))
    assert test.p_value == pytest.approx(extreme / 2 ** len(true), abs=0.02)


def test_the_interval_is_that_of_redrawn_images() -> None:
    true, first, second = pair(30, (0.5, 0.3))
    test = segmentations(true, first).compared(FIGURE, segmentations(true, second), FIGURE)
    random, differences = np.random.default_rng(3), []
    for _ in range(2000):
        chosen = random.integers(len(true), size=len(true))
        drawn = [list(masks[chosen]) for masks in (first, second, true)]
        differences.append(miou(drawn[1], drawn[2]) - miou(drawn[0], drawn[2]))
    assert test.interval == pytest.approx(tuple(np.percentile(differences, [2.5, 97.5])), abs=0.8)
    alone = [[miou([one], [other]) for one, other in zip(masks, true, strict=True)] for masks in (first, second)]
    assert test.only_second == sum(b > a for a, b in zip(*alone, strict=True))
    assert test.only_first == sum(a > b for a, b in zip(*alone, strict=True))


def test_equal_results_do_not_differ() -> None:
    true, first, _ = pair(5, (0.4, 0.4))
    test = segmentations(true, first).compared(FIGURE, segmentations(true, first), FIGURE)
    assert (test.difference, test.interval, test.p_value) == (0.0, None, 1.0)  # too few images for an interval
    assert (test.only_first, test.only_second) == (0, 0)


def test_figures_of_several_seeds_are_means() -> None:
    true, first, second = pair(6, (0.5, 0.2))
    twice = segmentations(true, first, second).compared(FIGURE, segmentations(true, second, first), FIGURE)
    assert twice.difference == pytest.approx(0)
    assert twice.first == pytest.approx((miou(list(first), list(true)) + miou(list(second), list(true))) / 2)


def test_images_without_a_true_pixel_count_nowhere() -> None:
    true, first, second = pair(4, (0.5, 0.2))
    true[0] = IGNORED
    test = segmentations(true, first).compared(FIGURE, segmentations(true, second), FIGURE)
    assert test.second == pytest.approx(miou(list(second[1:]), list(true[1:])))
    assert test.only_first + test.only_second <= 3


def test_unlike_results_are_refused() -> None:
    true, first, second = pair(4, (0.5, 0.2))
    one = segmentations(true, first)
    with pytest.raises(UserError, match="equally many --seeds"):
        one.compared(FIGURE, segmentations(true, first, second), FIGURE)
    with pytest.raises(UserError, match="are unlike measures"):
        one.compared(FIGURE, one, "dense_knn_pixel_accuracy_1of8")
    with pytest.raises(UserError, match="masks of a and b differ"):
        one.require_same_truth(segmentations(true[::-1].copy(), first), "a", "b")
