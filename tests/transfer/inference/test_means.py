"""Tests of statistics of numbers: against SciPy's bootstrap and permutation test, and for what has no spread."""

import numpy as np
import pytest
import torch
from scipy import stats

from excb.transfer.inference import means, statistics


def numbers(seed: int, images: int = 60) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(images))


def test_interval_is_scipys_but_for_the_draws() -> None:
    scores = numbers(0)
    expected = stats.bootstrap(
        (scores.numpy(),), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert means.mean_interval(scores) == pytest.approx((100 * expected.low, 100 * expected.high), abs=0.5)
    assert means.mean_interval(scores) == means.mean_interval(scores.clone())
    assert means.mean_interval(torch.full((7,), 0.3, dtype=torch.float64)) == (30, 30)


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


def test_a_bootstrap_test_is_the_t_test_of_many_images() -> None:
    differences = (numbers(1, 400) - numbers(2, 400) + 0.03).numpy()
    drawn = np.random.default_rng(0).choice(differences, (4000, 400)).mean(1)
    expected = stats.ttest_1samp(differences, 0).pvalue
    assert means.bootstrap_test(float(differences.mean()), drawn) == pytest.approx(expected, rel=0.15)
    assert means.bootstrap_test(0.5, np.append(np.full(9, 0.5), np.nan)) == 0
    assert means.bootstrap_test(0.0, np.zeros(9)) == 1
