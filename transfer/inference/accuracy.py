"""Statistics of hits: accuracy with its bootstrap interval, confusions, and the comparison of two predictions.

The sampling unit of intervals and tests is the test image, which is right or wrong.
"""

import numpy as np
import torch
from torch import Tensor

from excb.seeding import Purpose, generator

RESAMPLES = 2000


def correct(ranked: Tensor, targets: Tensor, *, within: int) -> Tensor:
    """Whether the true class is among the first `within` guesses, for every image.

    Args:
        ranked: [Q, R] int64, the guesses, best first; fewer than `within` where there are fewer classes; -1 is none.
        targets: [Q] int64.
        within: 1 for top-1, 5 for top-5.

    Returns:
        [Q] bool.
    """
    return (ranked[:, :within] == targets[:, None]).any(1)


def accuracy(hits: Tensor) -> float:
    """The share of images that are right, from a count, so that it is exact for any number of images."""
    return 100 * int(hits.sum()) / len(hits)


def accuracy_interval(hits: Tensor) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of `accuracy`, over the test images.

    Of Q images drawn with replacement, Binomial(Q, accuracy) are right: the counts are drawn, not the images. The
    interval is a function of Q and the number of hits alone. It has no width where all images are right, or none is.
    """
    images, right = len(hits), int(hits.sum())
    draws = generator(Purpose.BOOTSTRAP, images, right).binomial(images, right / images, RESAMPLES)
    return percentiles(draws, images)


def confusions(predicted: Tensor, targets: Tensor, classes: int) -> Tensor:
    """How many images of each class were taken for each class: [true, predicted] int64."""
    return torch.bincount(targets * classes + predicted, minlength=classes**2).view(classes, classes)


def mcnemar(first: Tensor, second: Tensor) -> float:
    """The exact McNemar test of two predictions on the same images.

    Only images that one of them alone has right distinguish them; were both equally good, each such image would be a
    fair coin (McNemar, Psychometrika 1947; two-sided binomial test).

    Args:
        first: [Q] bool, where the first is right.
        second: [Q] bool, where the second is.

    Returns:
        The p-value.
    """
    from scipy.stats import binomtest

    only_first, only_second = discordant(first, second)
    if only_first + only_second == 0:
        return 1.0
    return float(binomtest(only_first, only_first + only_second).pvalue)


def difference_interval(first: Tensor, second: Tensor) -> tuple[float, float]:
    """The 95 % paired bootstrap interval of second minus first, in points; arguments as `mcnemar`.

    Images are drawn with both predictions at once, so that the counts of those that one alone has right are
    multinomial.
    """
    images, (only_first, only_second) = len(first), discordant(first, second)
    random = generator(Purpose.BOOTSTRAP, images, only_first, only_second)
    same = images - only_first - only_second
    draws = random.multinomial(images, np.array([only_first, only_second, same]) / images, RESAMPLES)
    return percentiles(draws[:, 1] - draws[:, 0], images)


def discordant(first: Tensor, second: Tensor) -> tuple[int, int]:
    """Images that only the first, and only the second has right."""
    return int((first & ~second).sum()), int((second & ~first).sum())


def percentiles(draws: np.ndarray, whole: int = 1) -> tuple[float, float]:
    """The middle 95 % of bootstrap draws, in percent of `whole`."""
    low, high = 100 * np.percentile(draws, [2.5, 97.5]) / whole
    return round(float(low), 4), round(float(high), 4)
