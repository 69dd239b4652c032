"""Tests of scores: against loops, scikit-learn's and SciPy's counterparts, and bootstraps that resample every image."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import confusion_matrix
from torch import Tensor

from excb.inference import accuracy


def some(images: int, classes: int, *, guesses: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ranked guesses [Q, R] without repeats, and targets."""
    random = np.random.default_rng(seed)
    ranked = np.stack([random.permutation(classes)[:guesses] for _ in range(images)])
    return torch.from_numpy(ranked), torch.from_numpy(random.integers(classes, size=images))


def hits(right: int, images: int) -> Tensor:
    return torch.arange(images) < right


@pytest.mark.parametrize("classes", [2, 5, 9])
def test_accuracy_is_the_loops(classes: int) -> None:
    ranked, targets = some(201, classes)
    for within in (1, 5):
        right = sum(target in row[:within] for row, target in zip(ranked.tolist(), targets.tolist(), strict=True))
        assert accuracy.accuracy(accuracy.correct(ranked, targets, within=within)) == 100 * right / 201


def test_accuracy_counts_exactly() -> None:
    images = 2**24 + 3  # one more or less is lost in float32
    assert accuracy.accuracy(hits(images - 1, images)) == 100 * (images - 1) / images < 100


@pytest.mark.parametrize(("right", "images"), [(115, 201), (3, 20), (1, 1000), (38_000, 50_000), (0, 9), (30, 30)])
def test_interval_is_scipys_of_wilson(right: int, images: int) -> None:
    expected = stats.binomtest(right, images).proportion_ci(method="wilson")
    interval = accuracy.accuracy_interval(hits(right, images))
    assert interval == pytest.approx((100 * expected.low, 100 * expected.high), abs=1e-4)
    assert interval[0] <= 100 * right / images <= interval[1]
    assert interval[0] < interval[1]


def test_confusions_are_scikit_learns() -> None:
    ranked, targets = some(300, 7)
    expected = confusion_matrix(targets.numpy(), ranked[:, 0].numpy(), labels=range(9))
    assert np.array_equal(accuracy.confusions(ranked[:, 0], targets, 9).numpy(), expected)


def pair(only_first: int, only_second: int, both: int, neither: int) -> tuple[Tensor, Tensor]:
    first = torch.tensor([1] * only_first + [0] * only_second + [1] * both + [0] * neither).bool()
    second = torch.tensor([0] * only_first + [1] * only_second + [1] * both + [0] * neither).bool()
    return first, second


@pytest.mark.parametrize(("b", "c"), [(0, 1), (1, 0), (5, 5), (2, 9), (30, 12), (0, 6)])
def test_mcnemar_is_the_sum_of_coin_tosses_with_the_seen_one_by_half(b: int, c: int) -> None:
    tosses = [math.comb(b + c, heads) / 2 ** (b + c) for heads in range(min(b, c) + 1)]
    assert accuracy.mcnemar(*pair(b, c, 40, 13)) == pytest.approx(min(1, 2 * sum(tosses) - tosses[-1]))


def test_mcnemar_of_equal_predictions_finds_nothing() -> None:
    assert accuracy.mcnemar(*pair(0, 0, 3, 4)) == 1
    low, high = accuracy.difference_interval(*pair(0, 0, 3, 4))
    assert low == -high < 0


def test_mcnemar_of_many_images_is_the_chi_squared_test() -> None:
    b, c = 2000, 2150
    expected = stats.chi2.sf((b - c) ** 2 / (b + c), 1)
    assert accuracy.mcnemar(*pair(b, c, 30_000, 10_000)) == pytest.approx(expected, rel=0.01)


def test_difference_interval_by_hand() -> None:
    low, high = accuracy.difference_interval(*pair(4, 12, 50, 34))
    n, b, c = 102, 12.5, 4.5
    mean, error = (b - c) / n, 1.959964 * math.sqrt(b + c - (b - c) ** 2 / n) / n
    assert (low, high) == pytest.approx((100 * (mean - error), 100 * (mean + error)), abs=1e-4)
    wider = accuracy.difference_interval(*pair(4, 12, 50, 34), tries=10)
    assert wider[1] - wider[0] == pytest.approx((high - low) * 2.807034 / 1.959964, abs=1e-3)  # 1 - 0.025 / 10
