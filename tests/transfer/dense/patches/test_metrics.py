"""Tests of segmentation metrics: by hand, and against a loop over pixels and scikit-learn."""

import itertools
import math

import numpy as np
import pytest
from sklearn.metrics import jaccard_score

from excb.transfer.dense.patches.metrics import (
    HUNGARIAN,
    MEASURES,
    Areas,
    area_difference,
    area_spread,
    areas_of,
    confusion_of,
    matched,
    stacked,
)

VOID = -1


def test_iou_by_hand() -> None:
    true = np.array([[0, 0, 1, 1], [0, 0, 1, VOID]])
    predicted = np.array([[0, 1, 1, 1], [0, 0, 0, 2]])
    areas = stacked([areas_of(predicted, true, 4)])
    # class 0: 3 right of 4 predicted and 4 true; class 1: 2 right of 3 and 3; classes 2 and 3 have no pixel that counts
    assert areas.iou()[:2].tolist() == pytest.approx([3 / 5, 2 / 4])
    assert np.isnan(areas.iou()[2:]).all()
    assert areas.miou() == pytest.approx(100 * (3 / 5 + 2 / 4) / 2)
    assert areas.pixel_accuracy() == pytest.approx(100 * 5 / 7)


def test_pixels_without_a_class_count_nowhere_whatever_is_predicted() -> None:
    true = np.array([0, 1, VOID, VOID])
    some = [areas_of(np.array([0, 1, *guess]), true, 3) for guess in ((0, 0), (1, 2), (2, 2))]
    assert all((each == some[0]).all() for each in some)
    assert stacked(some[:1]).miou() == 100


def test_a_predicted_class_without_a_true_pixel_counts_as_zero() -> None:
    areas = stacked([areas_of(np.array([0, 0, 2]), np.array([0, 0, 0]), 3)])
    assert areas.iou().tolist() == pytest.approx([2 / 3, math.nan, 0], nan_ok=True)
    assert areas.miou() == pytest.approx(100 * (2 / 3 + 0) / 2)


def test_pixels_without_a_prediction_do_not_count() -> None:
    areas = stacked([areas_of(np.array([VOID, 0, 1]), np.array([0, 0, 0]), 2)])
    assert (areas.true.tolist(), areas.predicted.tolist(), areas.right.tolist()) == ([[2, 0]], [[1, 1]], [[1, 0]])


def test_figures_are_of_all_pixels_together_as_scikit_learn_has_them() -> None:
    random = np.random.default_rng(0)
    pairs = [(random.integers(0, 5, shape), random.integers(-1, 5, shape)) for shape in ((7, 9), (12, 3), (1, 40))]
    areas = stacked([areas_of(predicted, true, 5) for predicted, true in pairs])
    predicted, true = (np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))
    expected = jaccard_score(true[true >= 0], predicted[true >= 0], average="macro", labels=range(5))
    assert areas.miou() == pytest.approx(100 * expected)


@pytest.mark.parametrize("measure", MEASURES)
def test_intervals_hold_the_figure_and_are_those_of_a_loop(measure: str) -> None:
    random = np.random.default_rng(1)
    images = []
    for image in range(30):
        true = random.integers(0, 4, 200)
        predicted = np.where(random.random(200) < image / 30, true, random.integers(0, 4, 200))
        images.append(areas_of(predicted, true, 4))
    areas = stacked(images)
    spread = area_spread([areas], measure)
    ends = spread.interval()
    assert ends is not None
    assert ends[0] < 100 * spread.value < ends[1]
    without = []
    for image in range(30):
        kept = np.arange(30) != image
        without.append(getattr(Areas(areas.right[kept], areas.predicted[kept], areas.true[kept]), measure)() / 100)
    assert spread.value == pytest.approx(getattr(areas, measure)() / 100)
    assert spread.error == pytest.approx(np.sqrt(29 / 30 * np.square(without - np.mean(without)).sum()))
    assert area_spread([areas, areas], measure).error == pytest.approx(spread.error)
    assert area_difference([areas], [areas], measure).interval(lowest=-1.0) == (0, 0)


def test_classes_that_only_one_image_has_do_not_count_without_it() -> None:
    # Class 1 is in the first image only, and right there: without that image the mean is of class 0 alone.
    images = [areas_of(np.array([0, 1]), np.array([0, 1]), 2)] + 29 * [areas_of(np.array([0]), np.array([0]), 2)]
    assert area_spread([stacked(images)], "miou").interval() == (100, 100)


@pytest.mark.parametrize("seed", range(5))
def test_matched_classes_have_the_best_of_all_matchings(seed: int) -> None:
    """Oracle: every permutation of the predicted classes, scored as if it had been predicted."""
    random = np.random.default_rng(seed)
    shuffled, images = random.permutation(5), []
    for _ in range(31):
        true = random.integers(-1, 4, (6, 8))  # of class 4 there is no pixel
        mostly = np.where(random.random(true.shape) < 0.6, shuffled[true], random.integers(0, 5, true.shape))
        images.append((np.where(random.random(true.shape) < 0.05, VOID, mostly), true))
    areas = stacked([areas_of(*image, 5) for image in images], [confusion_of(*image, 5) for image in images])
    best = matched(areas)

    def relabelled(order: tuple[int, ...]) -> Areas:
        names = np.array([*order, VOID])
        return stacked([areas_of(names[predicted], true, 5) for predicted, true in images])

    every = [relabelled(order) for order in itertools.permutations(range(5))]
    oracle = max(every, key=lambda one: np.nansum(one.iou()))
    assert area_spread([best], HUNGARIAN).value == pytest.approx(np.nansum(oracle.iou()) / 5)
    assert area_spread([best], HUNGARIAN).interval() is not None
    assert (best.true == areas.true).all()
    assert best.predicted.sum() == areas.predicted.sum()
    assert best.right.sum() == oracle.right.sum()
    assert best.right.sum() > areas.right.sum()


def test_what_was_predicted_as_what() -> None:
    true, predicted = np.array([[0, 1, 1, VOID]]), np.array([[2, 1, 1, 0]])
    assert confusion_of(predicted, true, 3).tolist() == [[0, 2, 1], [1, 1, 2]]
    assert confusion_of(predicted[:, 3:], true[:, 3:], 3).shape == (0, 3)
