"""Statistics of scores that are numbers, such as average precision: means, intervals, a paired randomisation test.

The sampling unit is the test image, which has a score. Figures that are no mean over images have `jackknife`.
"""

import numpy as np
import torch
from torch import Tensor

from excb.inference.accuracy import COVERAGE, in_percent, share_interval
from excb.seeding import Purpose, generator

RESAMPLES = 2000
_FEW = 10  # images that differ
_AT_ONCE = 2**22  # most numbers drawn at once: 32 MiB
_TAILS = 100 * np.array([(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])


def mean_percent(scores: Tensor) -> float:
    """100 times the mean of scores [Q] float64, without the NaN."""
    return 100 * float(counted(scores).mean())


def mean_interval(scores: Tensor) -> tuple[float, float]:
    """The 95 % interval of `mean_percent`: the studentised bootstrap, or `hit_like` scores' as hits have it.

    Images that count are drawn with replacement. Each resample's mean is measured by the resample's own standard error,
    which follows scores that are skewed (Efron and Tibshirani, An introduction to the bootstrap, 1993, chapter 12). It
    is at most as wide as Wilson's interval of hits with this mean: no scores between 0 and 1 scatter more than hits.
    Scores beyond these bounds take Student's t. Equal numbers of images draw the same images.
    """
    values = counted(scores).numpy()
    images, mean, error = len(values), float(values.mean()), standard_error(values)
    if values.min() < 0 or values.max() > 1:
        return in_percent(*_student(values))
    widest = share_interval(mean, images)
    if error == 0:
        return widest
    if hit_like(values):
        return share_interval(mean, mean * (1 - mean) / error**2, quantile=_quantile(images))
    random, ratios = generator(Purpose.BOOTSTRAP, images), list[np.ndarray]()
    for number in blocks(images):
        drawn = values[random.integers(images, size=(number, images))]
        errors = drawn.std(1, ddof=1) / np.sqrt(images)
        distances = drawn.mean(1) - mean
        unknown = np.where(distances < 0, -np.inf, np.inf)  # of a resample without spread
        ratios.append(np.divide(distances, errors, out=unknown, where=errors > 1e-9 * error))
    low, high = np.percentile(np.concatenate(ratios), _TAILS, method="nearest")
    own = in_percent(max(0.0, mean - high * error), min(1.0, mean - low * error))
    return min(own, widest, key=lambda interval: interval[1] - interval[0])


def hit_like(values: np.ndarray) -> bool:
    """Whether at least half of the scores between 0 and 1 are 0 or 1.

    Then few images decide the spread, and resamples without them have next to none: the studentised bootstrap holds the
    truth in 98 %. The interval is Wilson's for as many hits as have the scores' variance, with Student's t (Korn and
    Graubard, Survey Methodology, 1998).
    """
    return 2 * int(np.isin(values, (0.0, 1.0)).sum()) >= len(values)


def mean_difference_interval(differences: Tensor) -> tuple[float, float]:
    """The 95 % interval of the mean of paired differences of scores between 0 and 1, in points: Student's t.

    Where fewer than `_FEW` images differ, their spread says little. Then two more, one for either side, widen it, as
    Agresti and Min do for hits.

    Args:
        differences: [Q] float64, second minus first of each image, without NaN.
    """
    values = differences.cpu().double().numpy()
    if np.count_nonzero(values) < _FEW:
        most = np.abs(values).max(initial=0) or 1.0
        values = np.append(values, [most, -most])
    low, high = _student(values)
    return in_percent(max(-1.0, low), min(1.0, high))


def _student(values: np.ndarray) -> tuple[float, float]:
    half = _quantile(len(values)) * standard_error(values)
    return float(values.mean()) - half, float(values.mean()) + half


def _quantile(images: int) -> float:
    """Of Student's t, for half of an interval's width in standard errors."""
    from scipy.stats import t

    return float(t.ppf((1 + COVERAGE) / 2, max(1, images - 1)))


def standard_error(values: np.ndarray) -> float:
    """Of the mean of independent values [Q]."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def randomisation_test(differences: Tensor) -> float:
    """The two-sided p-value of a paired randomisation test: were both equally good, each sign would be a fair coin.

    Args:
        differences: [Q] float64, second minus first of each image, without NaN.

    Returns:
        The share of `RESAMPLES` random signs, and the signs as they are, whose mean is as far from 0 as the true one.
    """
    values = differences[differences != 0].numpy()  # ties carry no information
    if len(values) == 0:
        return 1.0
    random = generator(Purpose.BOOTSTRAP, len(values), 1)
    sums = np.concatenate([(2 * random.integers(2, size=(n, len(values))) - 1) @ values for n in blocks(len(values))])
    extreme = np.abs(sums) >= abs(values.sum()) - 1e-9
    return float((1 + extreme.sum()) / (1 + RESAMPLES))


def counted(scores: Tensor) -> Tensor:
    """The scores of the images that count, on the CPU."""
    return scores[~scores.isnan()].cpu().to(torch.float64)


def blocks(images: int) -> list[int]:
    """`RESAMPLES`, as numbers of resamples of so many images that fit into memory together."""
    most = max(1, _AT_ONCE // images)
    return [min(most, RESAMPLES - start) for start in range(0, RESAMPLES, most)]
