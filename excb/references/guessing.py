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
    sure, tied = guessed_classes(train, within)
    drawn = (min(within, len(torch.unique(train))) - len(sure)) / len(tied)
    right, perhaps = (int(torch.isin(test, classes).sum()) for classes in (sure, tied))
    return 100 * (right + drawn * perhaps) / len(test)


def guessed_classes(train: Tensor, within: int = 1) -> tuple[Tensor, Tensor]:
    """The `within` most frequent classes of train images [N] int64, which `majority` guesses.

    Returns:
        Classes that are among them, and equally frequent ones of which the rest is drawn.
    """
    counts = torch.bincount(train)
    least = counts.sort(descending=True).values[min(within, int((counts > 0).sum())) - 1]
    return (counts > least).nonzero()[:, 0], (counts == least).nonzero()[:, 0]


def chance(train: Tensor, test: Tensor, *, within: int = 1) -> float:
    """Expected accuracy of `within` different classes of the train set drawn by chance, in percent; arguments as above.

    Test images of classes that the train set lacks are never right.
    """
    known = torch.unique(train)
    return 100 * min(within, len(known)) / len(known) * int(torch.isin(test, known).sum()) / len(test)
