"""Tests of statistics of numbers: against SciPy's bootstrap and permutation test, and for what has no spread."""

import numpy as np
import pytest
import torch
from scipy import stats

from excb.transfer.reporting import resampling, statistics


def numbers(seed: int, images: int = 60) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(images))


def test_interval_is_scipys_but_for_the_draws() -> None:
    scores = numbers(0)
    expected = stats.bootstrap(
        (scores.numpy(),), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert resampling.interval(scores) == pytest.approx((100 * expected.low, 100 * expected.high), abs=0.5)
    assert resampling.interval(scores) == resampling.interval(scores.clone())
    assert resampling.interval(torch.full((7,), 0.3, dtype=torch.float64)) == (30, 30)


def test_images_that_do_not_count_change_nothing() -> None:
    scores, gap = numbers(0), torch.tensor([float("nan")], dtype=torch.float64)
    padded = torch.cat([scores[:5], gap, scores[5:], gap])
    assert statistics.percent(padded) == pytest.approx(100 * float(scores.mean()))
    assert statistics.interval(padded) == statistics.interval(scores)
    by_class = statistics.by_class(padded, torch.tensor([0] * 5 + [1] + [0] * 56), ("a", "b", "c"))
    assert by_class == {"a": pytest.approx(100 * float(scores.mean()), abs=1e-4), "b": None, "c": None}


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
    assert resampling.randomisation_test(differences) == pytest.approx(expected, abs=0.03)


def test_equal_scores_do_not_differ() -> None:
    assert resampling.randomisation_test(torch.zeros(9, dtype=torch.float64)) == 1
    found = statistics.compared(numbers(1), numbers(1))
    assert (found.difference, found.p_value, found.only_first, found.only_second) == (0, 1, 0, 0)


def test_hits_compare_with_numbers_as_numbers() -> None:
    hits = numbers(1) > 0.5
    found = statistics.compared(hits, hits.double() - 0.25)
    assert found.test == "randomisation"
    assert found.difference == pytest.approx(-25)
    assert statistics.compared(hits, hits).test == "McNemar"
