"""Tests of halves: independent queries add nothing; they are drawn alike; dependence is found; few say nothing."""

import math

import numpy as np
import pytest
from scipy import stats

from excb.inference.accuracy import share_interval
from excb.inference.halves import (
    LEAST_DIVISIONS,
    MOST_DIVISIONS,
    as_bytes,
    divisions,
    enough,
    excess,
    from_bytes,
    halved_lead,
    halved_mean,
    how_many,
)

P = MOST_DIVISIONS


def alike(scores: np.ndarray) -> np.ndarray:
    """On halves as on all images: of queries without neighbours."""
    return np.tile(scores, (P, 1))


def test_halves_are_halves_and_the_same_every_time() -> None:
    first = divisions(61)
    assert first.shape == (P, 61)
    assert (first.sum(1) == 30).all()
    assert np.array_equal(first, divisions(61))
    assert not np.array_equal(first, divisions(61, of=1))
    assert np.array_equal(first[:30], divisions(61, number=30))


def test_of_many_queries_fewer_divisions_are_kept() -> None:
    assert [how_many(queries) for queries in (0, 60, 10_000, 20_000, 10**6)] == [P, P, P, 50, LEAST_DIVISIONS]


def test_independent_queries_have_no_excess() -> None:
    values = np.random.default_rng(0).random((40, 200))
    mean = 1 / 12 / 200  # their variance
    assert np.mean([excess(alike(own)) for own in values]) < 0.1 * mean


def test_what_moves_all_queries_of_a_half_is_found() -> None:
    random, first = np.random.default_rng(0), divisions(200)
    shared = random.random((P, 2, 1))
    scores = random.random((P, 200)) + np.where(first, shared[:, 0], shared[:, 1])
    # 1/12 moves each half, and half of that the mean of all: the mean of two.
    assert excess(scores) == pytest.approx(1 / 24, rel=0.3)


def test_the_error_is_that_of_independent_queries_and_the_excess() -> None:
    scores = np.random.default_rng(1).random(80)
    on_halves = np.random.default_rng(2).random((P, 80)) + np.where(divisions(80), 0.1, 0.0)
    spread, more = halved_mean(scores, on_halves), excess(on_halves)
    assert more > 0
    assert spread.error == pytest.approx(math.sqrt(more + stats.sem(scores) ** 2))
    assert spread.freedom == pytest.approx(1 / (1 / P + 1 / 79))
    units = scores.mean() * (1 - scores.mean()) / spread.error**2
    assert spread.interval() == share_interval(scores.mean(), units, quantile=stats.t.ppf(0.975, spread.freedom))
    assert halved_mean(scores, on_halves, gallery=60).freedom == pytest.approx(1 / (1 / P + 1 / 59))
    lead = halved_lead(scores - 0.5, on_halves)
    assert lead.error == spread.error
    assert lead.p_value() == pytest.approx(2 * stats.t.sf(abs(scores.mean() - 0.5) / lead.error, lead.freedom))


def test_where_all_are_right_or_none_differs_there_is_a_width() -> None:
    right, none = np.ones(100), np.zeros(100)
    low, high = halved_mean(right, alike(right)).interval() or (0, 0)
    assert 93 < low < 98
    assert high == 100
    moved = np.where(divisions(100), 1.0, 0.9)
    assert (halved_mean(right, moved).interval() or (100, 0))[0] < low
    low, high = halved_lead(none, alike(none)).interval(lowest=-1) or (0, 0)
    assert -6 < low < 0 < high < 6


def test_of_few_images_nothing_is_known() -> None:
    scores = np.random.default_rng(0).random(60)
    assert halved_mean(scores[:59], alike(scores[:59])).interval() is None
    assert halved_lead(scores[:59], alike(scores[:59])).p_value() == 1
    assert halved_mean(scores, alike(scores), gallery=59).interval() is None
    assert halved_mean(scores, alike(scores)).interval() is not None
    uncounted = np.append(scores, np.nan)
    assert halved_mean(uncounted, alike(uncounted)).error == halved_mean(uncounted, alike(uncounted)).error > 0


def test_a_byte_keeps_a_score() -> None:
    scores = np.array([[0.0, 1.0, 0.5, np.nan, 1 / 3]])
    assert as_bytes(scores).dtype == np.uint8
    np.testing.assert_allclose(from_bytes(as_bytes(scores)), scores, atol=0.0025)
    np.testing.assert_array_equal(from_bytes(as_bytes(scores))[:, :4], scores[:, :4])


@pytest.mark.parametrize("k", [1, 10, 200])
def test_enough_neighbours_are_searched_for(k: int) -> None:
    assert stats.binom.cdf(k - 1, enough(k), 0.5) < 1e-3
