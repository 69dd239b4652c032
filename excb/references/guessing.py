"""Accuracy without looking at an image: the most frequent classes, or any class by chance."""

import torch
from torch import Tensor

MAJORITY, CHANCE = "majority", "chance"
TITLES = {MAJORITY: "majority class", CHANCE: "chance"}


def majority(train: Tensor, test: Tensor, *, within: int = 1) -> float:
    """Accuracy of guessing the `within` most frequent classes of the train set for every test image, in percent.

    Among equally frequent classes it is that of a draw, so that their names do not matter: chance, if all are.

    Args:
        train: [N] int64, classes of the train images.
        test: [Q] int64, classes of the test images.
        within: guesses for an image: 1 for top-1, 5 for top-5.
    """
    counts = torch.bincount(train)
    known = int((counts > 0).sum())
    least = counts.sort(descending=True).values[min(within, known) - 1]  # frequency of the last class that is guessed
    sure, tied = counts > least, counts == least
    drawn = (min(within, known) - int(sure.sum())) / int(tied.sum())
    there = torch.bincount(test, minlength=len(counts))[: len(counts)]
    return 100 * (int(there[sure].sum()) + drawn * int(there[tied].sum())) / len(test)


def chance(train: Tensor, test: Tensor, *, within: int = 1) -> float:
    """Expected accuracy of `within` different classes of the train set drawn by chance, in percent; arguments as above.

    Test images of classes that the train set lacks are never right.
    """
    known = torch.unique(train)
    return 100 * min(within, len(known)) / len(known) * int(torch.isin(test, known).sum()) / len(test)
