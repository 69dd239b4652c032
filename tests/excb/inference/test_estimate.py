"""Tests of estimates: Student's interval and test by SciPy, too few units, several tries, and means of sets."""

import math

import numpy as np
import pytest
from scipy import stats

from excb.inference.estimate import Estimate, mean_of


def of_mean(values: np.ndarray) -> Estimate:
    return Estimate.of_mean(values)


def test_of_a_mean_it_is_students() -> None:
    values = np.random.default_rng(0).random(50) - 0.4
    spread, expected = of_mean(values), stats.ttest_1samp(values, 0)
    ends = expected.confidence_interval()
    assert spread.error == pytest.approx(stats.sem(values))
    assert spread.interval(lowest=-1) == pytest.approx((100 * ends.low, 100 * ends.high), abs=1e-3)
    assert spread.p_value() == pytest.approx(expected.pvalue)
    half = stats.t.ppf(1 - 0.025 / 4, 49) * stats.sem(values)
    assert spread.margin(tries=4) == pytest.approx(half)
    low, high = spread.interval(lowest=-1, tries=4) or (0, 0)
    assert high - low == pytest.approx(200 * half, abs=1e-3)


def test_of_one_value_nothing_is_known() -> None:
    one = of_mean(np.array([0.3]))
    assert one.value == 0.3
    assert math.isnan(one.margin())
    assert one.interval() is None
    assert one.p_value() == 1


def test_equals_do_not_differ() -> None:
    assert of_mean(np.zeros(40)).p_value() == 1
    assert of_mean(np.full(40, 0.5)).p_value() == 0


def test_a_mean_of_sets_has_the_variances_added() -> None:
    sets = [of_mean(np.random.default_rng(seed).random(60)) for seed in range(4)]
    mean = mean_of(sets)
    assert mean.value == pytest.approx(np.mean([one.value for one in sets]))
    assert mean.error == pytest.approx(np.sqrt(sum(one.error**2 for one in sets)) / 4)
