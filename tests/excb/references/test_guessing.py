"""Accuracies of guesses, against loops and drawing."""

import numpy as np
import pytest
import torch

from excb.references.guessing import chance, majority


def test_majority_guesses_the_most_frequent_classes_of_the_train_set() -> None:
    train, test = torch.tensor([2, 2, 2, 0, 0, 1]), torch.tensor([0, 0, 0, 1, 2, 3, 3, 3])
    assert majority(train, test) == 100 * 1 / 8  # class 2, though 0 and 3 are more frequent in test
    assert majority(train, test, within=2) == 100 * 4 / 8
    assert majority(train, test, within=5) == 100 * 5 / 8  # class 3 is nowhere in train


@pytest.mark.parametrize("within", [1, 2, 3, 4, 5])
def test_majority_of_equally_frequent_classes_is_what_drawing_one_gives(within: int) -> None:
    train, test = torch.tensor([0, 0, 1, 1, 2, 4, 4, 4]), torch.tensor([1, 1, 1, 2, 4, 3, 5])
    random, counts, hits = np.random.default_rng(0), {0: 2, 1: 2, 2: 1, 4: 3}, 0
    for _ in range(4000):
        order = sorted(counts, key=lambda label: (-counts[label], random.random()))
        hits += sum(target in order[:within] for target in test.tolist())
    assert majority(train, test, within=within) == pytest.approx(100 * hits / (4000 * len(test)), abs=1)


def test_majority_of_balanced_classes_is_chance_whatever_test_lacks() -> None:
    train, test = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]), torch.tensor([1, 2, 3, 3, 3])
    assert majority(train, test) == chance(train, test) == 25


@pytest.mark.parametrize("within", [1, 2, 5])
def test_chance_is_what_drawing_gives(within: int) -> None:
    train, test = torch.tensor([0, 1, 2, 2, 4]), torch.tensor([0, 0, 1, 2, 4, 5])
    random, known, hits = np.random.default_rng(0), [0, 1, 2, 4], 0
    for _ in range(4000):
        for target in test.tolist():
            hits += target in random.choice(known, min(within, 4), replace=False)
    assert chance(train, test, within=within) == pytest.approx(100 * hits / (4000 * len(test)), abs=1)
