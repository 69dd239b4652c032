"""Statistics of hits: accuracy, confusions, and the comparison of two predictions, with intervals that cover.

The sampling unit of intervals and tests is the test image, which is right or wrong.
"""

import math
from statistics import NormalDist

import torch
from torch import Tensor

COVERAGE = 0.95  # of all intervals


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
    """The 95 % interval of `accuracy`: Wilson's, which has a width even where all images are right, or none is.

    Wilson (Journal of the American Statistical Association, 1927); Brown, Cai and DasGupta (Statistical Science, 2001)
    recommend it for any number of images.
    """
    return share_interval(int(hits.sum()) / len(hits), len(hits))


def share_interval(share: float, units: float, *, quantile: float | None = None) -> tuple[float, float]:
    """Wilson's 95 % interval in percent of a share, 0 to 1, of so many units.

    For scores between 0 and 1 with this mean it is at least as wide as needed: none scatter more than hits do.

    Args:
        share: right ones.
        units: of all.
        quantile: of the share's distribution, in standard errors; by default the normal one.
    """
    square = (NormalDist().inv_cdf((1 + COVERAGE) / 2) if quantile is None else quantile) ** 2
    middle = (share + square / (2 * units)) / (1 + square / units)
    half = math.sqrt(square * (share * (1 - share) / units + square / (4 * units**2))) / (1 + square / units)
    # Of no hits, or nothing else, the bound is exact.
    low = 0.0 if share == 0 else max(0.0, middle - half)
    high = 1.0 if share == 1 else min(1.0, middle + half)
    return in_percent(low, high)


def confusions(predicted: Tensor, targets: Tensor, classes: int) -> Tensor:
    """How many images of each class were taken for each class: [true, predicted] int64."""
    return torch.bincount(targets * classes + predicted, minlength=classes**2).view(classes, classes)


def mcnemar(first: Tensor, second: Tensor) -> float:
    """McNemar's test of two predictions on the same images, with the mid-P value.

    Only images that one of them alone has right distinguish them; were both equally good, each such image would be a
    fair coin (McNemar, Psychometrika, 1947). The exact test calls equals different in far less than 5 % of cases where
    there are few such images. The mid-P value counts the observed outcome by half (Fagerland, Lydersen and Laake, BMC
    Medical Research Methodology, 2013).

    Args:
        first: [Q] bool, where the first is right.
        second: [Q] bool, where the second is.

    Returns:
        The two-sided p-value.
    """
    from scipy.stats import binom

    only_first, only_second = discordant(first, second)
    rarer, both = min(only_first, only_second), only_first + only_second
    return min(1.0, float(2 * binom.cdf(rarer, both, 0.5) - binom.pmf(rarer, both, 0.5)))


def difference_interval(first: Tensor, second: Tensor, *, tries: int = 1) -> tuple[float, float]:
    """The 95 % interval of second minus first, in points; predictions as in `mcnemar`.

    It is the adjusted Wald interval of paired shares (Agresti and Min, Statistics in Medicine, 2005), which has a width
    even where both have the same images right.

    Args:
        first: [Q] bool.
        second: [Q] bool.
        tries: number of predictions of which the second is the best; each had its chance (Bonferroni).
    """
    only_first, only_second = (count + 0.5 for count in discordant(first, second))
    images = len(first) + 2
    mean = (only_second - only_first) / images
    error = math.sqrt(only_first + only_second - images * mean**2) / images
    half = NormalDist().inv_cdf(1 - (1 - COVERAGE) / 2 / max(1, tries)) * error
    return in_percent(max(-1.0, mean - half), min(1.0, mean + half))


def discordant(first: Tensor, second: Tensor) -> tuple[int, int]:
    """Images that only the first, and only the second has right."""
    return int((first & ~second).sum()), int((second & ~first).sum())


def in_percent(low: float, high: float) -> tuple[float, float]:
    """An interval of shares of 1, in percent as it is stored."""
    return round(100 * float(low), 4), round(100 * float(high), 4)
