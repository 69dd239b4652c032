"""Tests of the jackknife: against the standard error of a mean, a square of known variance, for too few images."""

import numpy as np
import pytest
from scipy import stats

from excb.inference.estimate import LEAST, Estimate
from excb.inference.jackknife import (
    MOST_GROUPS,
    MOST_PAIRS,
    Replicates,
    group_pairs,
    jackknife,
    left_out,
    pairs_left_out,
)


def of_mean(values: np.ndarray) -> Estimate:
    return jackknife(values.mean(), np.array([np.delete(values, one).mean() for one in range(len(values))]))


def test_of_a_mean_it_is_students() -> None:
    values = np.random.default_rng(0).random(50) - 0.4
    spread = of_mean(values)
    assert spread.error == pytest.approx(stats.sem(values))
    assert spread.freedom == 49


def test_too_few_images_have_no_interval_and_say_nothing() -> None:
    spread = of_mean(np.random.default_rng(0).random(LEAST - 1))
    assert spread.interval() is None
    assert spread.p_value() == 1
    assert of_mean(np.random.default_rng(0).random(LEAST)).interval() is not None


@pytest.mark.parametrize("images", [7, MOST_GROUPS, 5 * MOST_GROUPS + 3])
def test_each_image_is_left_out_once(images: int) -> None:
    weights = np.concatenate(list(left_out(images)))
    assert len(weights) == min(images, MOST_GROUPS)
    assert ((1 - weights).sum(0) == 1).all()
    assert np.ptp(weights.sum(1)) <= 1
    np.testing.assert_array_equal(weights, np.concatenate(list(left_out(images))))


@pytest.mark.parametrize("images", [2, 40, MOST_GROUPS, 5 * MOST_GROUPS + 3, 10**6])
def test_pairs_are_of_unlike_groups_and_both_are_left_out(images: int) -> None:
    pairs = group_pairs(images)
    assert LEAST <= len(pairs) <= MOST_PAIRS
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert (np.bincount(pairs.ravel(), minlength=min(images, MOST_GROUPS)) <= 20).all() or images < 40
    if images <= 5 * MOST_GROUPS + 3:
        single = np.concatenate(list(left_out(images)))
        np.testing.assert_array_equal(
            np.concatenate(list(pairs_left_out(images))), single[pairs[:, 0]] * single[pairs[:, 1]]
        )


def mean_of(values: np.ndarray) -> Replicates:
    return Replicates(lambda weights: weights @ values / weights.sum(1), len(values))


def square_of_mean(values: np.ndarray) -> Replicates:
    return Replicates(lambda weights: np.square(weights @ values / weights.sum(1)), len(values))


def test_of_means_nothing_is_taken_off() -> None:
    first, second = np.random.default_rng(0).random((2, 80))
    lead = mean_of(second).lead_over(mean_of(first))
    assert lead.value == pytest.approx(np.mean(second - first))
    assert lead.error == pytest.approx(stats.sem(second - first))
    assert mean_of(first).spread().error == pytest.approx(stats.sem(first))


def test_of_a_square_half_of_the_variance_of_pairs_is_taken_off() -> None:
    """The square of the mean of n numbers N(m, 1): single ones have the variance 4 m^2 / n, pairs of them 2 / n^2."""
    random, images, centre = np.random.default_rng(0), 40, 0.4
    nothing, plain, less = mean_of(np.zeros(images)), [], []
    for _ in range(1000):
        values = centre + random.standard_normal(images)
        square = square_of_mean(values)
        plain.append(square.spread().error ** 2)
        less.append(square.lead_over(nothing).error ** 2)
    single, pairs = 4 * centre**2 / images, 2 / images**2
    assert np.mean(plain) == pytest.approx(single + 2 * pairs, rel=0.05)
    assert np.mean(plain) - np.mean(less) == pytest.approx(pairs / 2, rel=0.15)


def test_too_few_images_tell_no_lead() -> None:
    first, second = np.random.default_rng(0).random((2, LEAST - 1))
    assert mean_of(first).lead_over(mean_of(second)).p_value() == 1


def test_pairs_are_left_out_only_to_compare() -> None:
    """They double the cost of an interval."""
    rows: list[int] = []

    def figure(weights: np.ndarray) -> np.ndarray:
        rows.append(len(weights))
        return weights.sum(1).astype(float)

    replicates = Replicates(figure, 60)
    replicates.spread()
    assert sum(rows) == 1 + 60
    replicates.lead_over(mean_of(np.ones(60)))
    replicates.lead_over(mean_of(np.zeros(60)))
    assert sum(rows) == 1 + 60 + len(group_pairs(60))
