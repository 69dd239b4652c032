"""Tests of halves: of a mean they give its standard error; they are drawn alike; too few images say nothing."""

import math

import numpy as np
import pytest

from excb.inference.halves import DIVISIONS, divisions, enough, halved


def test_halves_are_halves_and_the_same_every_time() -> None:
    first = divisions(61)
    assert first.shape == (DIVISIONS, 61)
    assert (first.sum(1) == 30).all()
    assert np.array_equal(first, divisions(61))
    assert not np.array_equal(first, divisions(61, of=1))


def test_of_a_mean_the_error_is_that_of_independent_images() -> None:
    errors, values = [], np.random.default_rng(0).random((40, 200))
    split = divisions(200)
    for own in values:
        differences = np.array([own[half].mean() - own[~half].mean() for half in split])
        errors.append(halved(float(own.mean()), differences, own).error)
    assert np.mean(errors) == pytest.approx(math.sqrt(1 / 12 / 200), rel=0.05)


def test_of_few_images_or_without_a_figure_nothing_is_known() -> None:
    scores = np.random.default_rng(0).random(60)
    assert halved(0.5, np.zeros(DIVISIONS), scores[:59]).interval() is None
    assert halved(0.5, np.full(DIVISIONS, np.nan), scores).interval() is None
    assert halved(0.5, np.full(DIVISIONS, 0.1), scores).interval() is not None
    assert halved(0.5, np.zeros(DIVISIONS), scores).error == scores.std(ddof=1) / math.sqrt(60)


@pytest.mark.parametrize("k", [1, 10, 200])
def test_enough_neighbours_are_searched_for(k: int) -> None:
    from scipy.stats import binom

    assert binom.cdf(k - 1, enough(k), 0.5) < 1e-3
