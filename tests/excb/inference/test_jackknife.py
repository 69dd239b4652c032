"""Tests of the jackknife: against the standard error of a mean, for too few images, and that each is left out once."""

import numpy as np
import pytest
from scipy import stats

from excb.inference.estimate import LEAST, Estimate
from excb.inference.jackknife import MOST_GROUPS, jackknife, left_out


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
