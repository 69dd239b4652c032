"""Tests of average precision: figures worked by hand, a loop over the definition, and weights as repeated images."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from excb.inference.jackknife import group_pairs, left_out
from excb.transfer.reporting.average_precision import (
    area,
    eleven_points,
    mean,
    precision_by_class,
    precision_difference,
    precision_spread,
)

SUMMARIES = {"area": area, "eleven": eleven_points}


def one(scores: list[float], targets: list[int], summary: str) -> float:
    values = precision_by_class(np.array(scores)[:, None], np.array(targets, np.int8)[:, None], SUMMARIES[summary])
    assert values.shape == (1, 1)
    return float(values[0, 0])


@pytest.mark.parametrize(
    ("scores", "targets", "eleven", "whole"),
    [
        # Precision 1, 1/2, 2/3, 1/2, 3/5 at recall 1/3, 1/3, 2/3, 2/3, 1. Best at or beyond a recall of 0, .1, .2, .3:
        # 1; of .4, .5, .6: 2/3; of .7 to 1: 3/5.
        ([0.9, 0.8, 0.7, 0.6, 0.5], [1, 0, 1, 0, 1], (4 * 1 + 3 * 2 / 3 + 4 * 3 / 5) / 11, (1 + 2 / 3 + 3 / 5) / 3),
        # The same, with difficult images anywhere: they count neither for nor against.
        (
            [0.95, 0.9, 0.8, 0.75, 0.7, 0.6, 0.5],
            [-1, 1, 0, -1, 1, 0, 1],
            (4 * 1 + 3 * 2 / 3 + 4 * 3 / 5) / 11,
            (1 + 2 / 3 + 3 / 5) / 3,
        ),
        # The best image last: precision 1/2 at recall 1 is the best everywhere.
        ([0.2, 0.1], [0, 1], 1 / 2, 1 / 2),
        # Ten of ten right: a recall of 0.3 is reached by the third image, which floats deny.
        ([1 - 0.1 * n for n in range(10)] + [0.0], [1] * 10 + [0], 1.0, 1.0),
        # Equal scores are one threshold: the share of the class.
        ([0.5, 0.5, 0.5, 0.5], [1, 0, 0, 0], 1 / 4, 1 / 4),
        # Recall 1/2 with precision 1, then 2/3 with a tie of one hit and one miss.
        ([0.9, 0.5, 0.5], [1, 0, 1], (6 * 1 + 5 * 2 / 3) / 11, (1 + 2 / 3) / 2),
    ],
)
def test_figures_worked_by_hand(scores: list[float], targets: list[int], eleven: float, whole: float) -> None:
    assert one(scores, targets, "eleven") == pytest.approx(eleven, abs=1e-12)
    assert one(scores, targets, "area") == pytest.approx(whole, abs=1e-12)


def by_definition(scores: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """VOC's devkit in loops, on scores without ties: average precision at 11 points, and with area."""
    ranked = [int(target) for _, target in sorted(zip(-scores, targets, strict=True)) if target >= 0]
    points = [(sum(ranked[:rank]) / sum(ranked), sum(ranked[:rank]) / rank) for rank in range(1, len(ranked) + 1)]
    eleven = sum(max(precision for recall, precision in points if recall >= tenth / 10 - 1e-12) for tenth in range(11))
    recalls, precisions = [0.0, *(recall for recall, _ in points)], [0.0, *(precision for _, precision in points)]
    whole = sum((recalls[at] - recalls[at - 1]) * max(precisions[at:]) for at in range(1, len(recalls)))
    return eleven / 11, whole


def test_random_rankings_agree_with_loops_over_the_definition() -> None:
    random = np.random.default_rng(0)
    scores = random.permutation(40 * 7).reshape(40, 7).astype(float)
    targets = random.choice(np.array([1, 0, -1], np.int8), (40, 7), p=[0.3, 0.6, 0.1])
    for label in range(7):
        eleven, whole = by_definition(scores[:, label], targets[:, label])
        assert precision_by_class(scores, targets, eleven_points)[0, label] == pytest.approx(eleven)
        assert precision_by_class(scores, targets, area)[0, label] == pytest.approx(whole)
        known = targets[:, label] >= 0
        plain = average_precision_score(targets[known, label], scores[known, label])
        assert whole >= plain - 1e-12  # scikit-learn's has no envelope


def test_weights_are_images_that_stand_there_as_often() -> None:
    random = np.random.default_rng(1)
    scores, targets = random.integers(5, size=(12, 3)).astype(float), random.integers(-1, 2, (12, 3)).astype(np.int8)
    weights = random.integers(3, size=(4, 12))
    for summary in SUMMARIES.values():
        values = precision_by_class(scores, targets, summary, weights)
        for row, counts in zip(values, weights, strict=True):
            repeated = np.repeat(np.arange(12), counts)
            expected = precision_by_class(scores[repeated], targets[repeated], summary)[0]
            np.testing.assert_allclose(row, expected)


def test_the_mean_leaves_out_classes_without_an_image() -> None:
    targets = np.array([[1, 0, -1], [0, 0, -1]], np.int8)
    scores = np.array([[0.0, 0.5, 0.5], [1.0, 0.5, 0.5]])
    assert mean(scores, targets, area) == pytest.approx([0.5])
    assert np.isnan(mean(scores, np.zeros((2, 3), np.int8), area)).all()


def without(scores: np.ndarray, targets: np.ndarray, images: list[int]) -> float:
    return float(mean(np.delete(scores, images, 0), np.delete(targets, images, 0), area)[0])


def test_spread_is_that_of_loops_that_delete_images() -> None:
    """Tukey's jackknife; of a difference, less half of Efron and Stein's correction."""
    random = np.random.default_rng(3)
    targets = (random.random((60, 4)) < 0.3).astype(np.int8)
    first, second = random.random((60, 4)) + targets, random.random((60, 4))
    image_of = [int(row.argmin()) for row in np.concatenate(list(left_out(60)))]
    values = [float(mean(scores, targets, area)[0]) for scores in (first, second)]
    singles = np.array([[without(scores, targets, [image]) for image in image_of] for scores in (first, second)])
    spread = precision_spread(first, targets, area)
    assert spread.value == pytest.approx(values[0])
    assert spread.error == pytest.approx(np.sqrt(59 / 60 * np.square(singles[0] - singles[0].mean()).sum()))
    lead, leads, second_differences = values[1] - values[0], singles[1] - singles[0], []
    for i, j in group_pairs(60):
        one, other = (without(scores, targets, [image_of[i], image_of[j]]) for scores in (first, second))
        second_differences.append(60 * lead - 59 * (leads[i] + leads[j]) + 58 * (other - one))
    variance = 59 / 60 * np.square(leads - leads.mean()).sum() - np.var(second_differences) / 4
    difference = precision_difference(first, second, targets, area)
    assert difference.error == pytest.approx(np.sqrt(variance))
    assert difference.p_value() < 1e-3
