"""Tests of scores: against loops, scikit-learn's and SciPy's counterparts, and bootstraps that resample every image."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import confusion_matrix
from torch import Tensor

from excb.transfer.inference import accuracy


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


@pytest.mark.parametrize(("right", "images"), [(115, 201), (3, 20), (1, 1000), (38_000, 50_000)])
def test_interval_is_the_binomials(right: int, images: int) -> None:
    expected = 100 * stats.binom.ppf([0.025, 0.975], images, right / images) / images
    spread = 100 * math.sqrt(right / images * (1 - right / images) / images)
    # Quantiles of 2,000 draws scatter by some 7 % of a standard deviation, and counts are whole.
    assert accuracy.accuracy_interval(hits(right, images)) == pytest.approx(
        expected, abs=0.25 * spread + 100.01 / images
    )


def test_interval_is_that_of_resampling_every_image() -> None:
    right = hits(140, 201).numpy()
    draws = np.random.default_rng(1).choice(right, (4000, 201)).mean(1)
    expected = 100 * np.percentile(draws, [2.5, 97.5])
    assert accuracy.accuracy_interval(torch.from_numpy(right)) == pytest.approx(expected, abs=0.8)


def test_interval_is_the_same_every_time_and_covers_the_figure() -> None:
    found = accuracy.accuracy_interval(hits(70, 100))
    assert accuracy.accuracy_interval(hits(70, 100).flip(0)) == found
    assert found[0] < 70 < found[1]
    assert accuracy.accuracy_interval(hits(0, 9)) == (0, 0)
    assert accuracy.accuracy_interval(hits(9, 9)) == (100, 100)


def test_confusions_are_scikit_learns() -> None:
    ranked, targets = some(300, 7)
    expected = confusion_matrix(targets.numpy(), ranked[:, 0].numpy(), labels=range(9))
    assert np.array_equal(accuracy.confusions(ranked[:, 0], targets, 9).numpy(), expected)


def pair(only_first: int, only_second: int, both: int, neither: int) -> tuple[Tensor, Tensor]:
    first = torch.tensor([1] * only_first + [0] * only_second + [1] * both + [0] * neither).bool()
    second = torch.tensor([0] * only_first + [1] * only_second + [1] * both + [0] * neither).bool()
    return first, second


@pytest.mark.parametrize(("b", "c"), [(0, 1), (1, 0), (5, 5), (2, 9), (30, 12), (0, 6)])
def test_mcnemar_is_the_sum_of_coin_tosses(b: int, c: int) -> None:
    tails = sum(math.comb(b + c, heads) for heads in range(min(b, c) + 1)) / 2 ** (b + c)
    assert accuracy.mcnemar(*pair(b, c, 40, 13)) == pytest.approx(min(1, 2 * tails))


def test_mcnemar_of_equal_predictions_finds_nothing() -> None:
    assert accuracy.mcnemar(*pair(0, 0, 3, 4)) == 1
    assert accuracy.difference_interval(*pair(0, 0, 3, 4)) == (0, 0)


def test_mcnemar_of_many_images_is_the_chi_squared_test() -> None:
    b, c = 2000, 2150
    expected = stats.chi2.sf((abs(b - c) - 1) ** 2 / (b + c), 1)
    assert accuracy.mcnemar(*pair(b, c, 30_000, 10_000)) == pytest.approx(expected, rel=0.01)


def test_difference_interval_is_that_of_resampling_pairs() -> None:
    first, second = pair(20, 45, 100, 60)
    drawn = np.random.default_rng(1).integers(225, size=(4000, 225))
    draws = (second.numpy()[drawn].astype(int) - first.numpy()[drawn]).mean(1)
    found = accuracy.difference_interval(first, second)
    assert found == pytest.approx(100 * np.percentile(draws, [2.5, 97.5]), abs=0.8)
    swapped = accuracy.difference_interval(second, first)
    assert swapped == pytest.approx((-found[1], -found[0]), abs=1.5)  # other draws
