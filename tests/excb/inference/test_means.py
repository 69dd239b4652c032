"""Tests of statistics of numbers: against SciPy's bootstrap and permutation test, and for what has no spread."""

import numpy as np
import pytest
import torch
from scipy import stats

from excb.inference import accuracy, means, statistics


def numbers(seed: int, images: int = 60) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(images))


def test_interval_is_that_of_a_loop_over_resamples() -> None:
    scores = numbers(0).numpy() ** 3
    random, ratios = np.random.default_rng(1), []
    for _ in range(20_000):
        drawn = random.choice(scores, 60)
        ratios.append((drawn.mean() - scores.mean()) / (drawn.std(ddof=1) / 60**0.5))
    low, high = np.percentile(ratios, [2.5, 97.5])
    error = scores.std(ddof=1) / 60**0.5
    expected = 100 * (scores.mean() - high * error), 100 * (scores.mean() - low * error)
    assert means.mean_interval(torch.from_numpy(scores)) == pytest.approx(expected, abs=0.7)
    assert means.mean_interval(torch.from_numpy(scores)) == means.mean_interval(torch.from_numpy(scores.copy()))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_scores_without_spread_have_the_interval_of_hits(share: float) -> None:
    expected = accuracy.share_interval(share, 7)
    assert means.mean_interval(torch.full((7,), share, dtype=torch.float64)) == expected
    assert expected[0] < expected[1]


def test_scores_that_are_mostly_right_or_wrong_have_the_interval_of_hits_of_their_variance() -> None:
    scores = torch.where(numbers(6) < 0.7, 1.0, numbers(7))
    mean, variance = float(scores.mean()), float(scores.var()) / 60
    mean_error = stats.t.ppf(0.975, 59) ** 2 * variance / (mean * (1 - mean))  # Wilson's square over units
    # The ends are where a test of the mean, with the variance of hits of that mean, just rejects.
    ends = np.roots([1 + mean_error, -(2 * mean + mean_error), mean**2])
    assert means.mean_interval(scores) == pytest.approx(tuple(100 * np.sort(ends)), abs=1e-3)
    assert means.hit_like(scores.numpy())
    assert statistics.basis(scores).method != statistics.basis(numbers(6)).method
    low, high = means.mean_interval(torch.tensor([0.0, 1.0] * 30).double())
    hits = accuracy.accuracy_interval(torch.tensor([False, True] * 30))
    assert (low, high) == pytest.approx(hits, abs=0.4)


def test_scores_beyond_one_have_students_interval() -> None:
    scores = 3 * numbers(3)
    expected = stats.ttest_1samp(scores.numpy(), 0).confidence_interval()
    assert means.mean_interval(scores) == pytest.approx((100 * expected.low, 100 * expected.high), abs=1e-3)


def test_differences_have_students_interval_and_few_widen_it() -> None:
    differences = numbers(4) - numbers(5)
    expected = stats.ttest_1samp(differences.numpy(), 0).confidence_interval()
    interval = means.mean_difference_interval(differences)
    assert interval == pytest.approx((100 * expected.low, 100 * expected.high), abs=1e-3)
    few = torch.zeros(60, dtype=torch.float64)
    assert means.mean_difference_interval(few)[0] < 0 < means.mean_difference_interval(few)[1]
    few[:3] = 1
    assert means.mean_difference_interval(few)[0] < 0


@pytest.mark.parametrize("shift", [0.0, 0.05, 0.2])
def test_randomisation_is_scipys_permutation_test(shift: float) -> None:
    differences = numbers(1) - numbers(2) + shift
    expected = stats.permutation_test(
        (differences.numpy(), np.zeros(60)),
        lambda x, y: np.mean(x - y),
        permutation_type="samples",
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    ).pvalue
    assert means.randomisation_test(differences) == pytest.approx(expected, abs=0.03)


def test_equal_scores_do_not_differ() -> None:
    assert means.randomisation_test(torch.zeros(9, dtype=torch.float64)) == 1
    found = statistics.compared(numbers(1), numbers(1))
    assert (found.difference, found.p_value, found.only_first, found.only_second) == (0, 1, 0, 0)
