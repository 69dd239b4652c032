"""Tests of the jackknife: against a loop, the standard error of a mean, Student's test, and for too few images."""

import numpy as np
import pytest
from scipy import stats

from excb.inference.jackknife import LEAST, MOST_GROUPS, Jackknife, left_out, mean_of


def of_mean(values: np.ndarray) -> Jackknife:
    return Jackknife.of(values.mean(), np.array([np.delete(values, one).mean() for one in range(len(values))]))


def test_of_a_mean_it_is_students() -> None:
    values = np.random.default_rng(0).random(50) - 0.4
    spread, expected = of_mean(values), stats.ttest_1samp(values, 0)
    ends = expected.confidence_interval()
    assert spread.error == pytest.approx(stats.sem(values))
    assert spread.interval(lowest=-1) == pytest.approx((100 * ends.low, 100 * ends.high), abs=1e-3)
    assert spread.p_value() == pytest.approx(expected.pvalue)


def test_too_few_images_have_no_interval_and_say_nothing() -> None:
    spread = of_mean(np.random.default_rng(0).random(LEAST - 1))
    assert spread.interval() is None
    assert spread.p_value() == 1
    assert of_mean(np.random.default_rng(0).random(LEAST)).interval() is not None


def test_equals_do_not_differ() -> None:
    assert of_mean(np.zeros(40)).p_value() == 1
    assert of_mean(np.full(40, 0.5)).p_value() == 0


def test_a_mean_of_sets_has_the_variances_added() -> None:
    sets = [of_mean(np.random.default_rng(seed).random(60)) for seed in range(4)]
    mean = mean_of(sets)
    assert mean.value == pytest.approx(np.mean([one.value for one in sets]))
    assert mean.error == pytest.approx(np.sqrt(sum(one.error**2 for one in sets)) / 4)


@pytest.mark.parametrize("images", [7, MOST_GROUPS, 5 * MOST_GROUPS + 3])
def test_each_image_is_left_out_once(images: int) -> None:
    weights = np.concatenate(list(left_out(images)))
    assert len(weights) == min(images, MOST_GROUPS)
    assert ((1 - weights).sum(0) == 1).all()
    assert np.ptp(weights.sum(1)) <= 1
    np.testing.assert_array_equal(weights, np.concatenate(list(left_out(images))))
