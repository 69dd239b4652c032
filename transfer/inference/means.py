"""Statistics of scores that are numbers, such as average precision: means, bootstrap, a paired randomisation test.

The sampling unit is the test image, which has a score. Figures that are no mean over images have `bootstrap_test`.
"""

import numpy as np
import torch
from torch import Tensor

from excb.seeding import Purpose, generator

from .accuracy import RESAMPLES, percentiles

_AT_ONCE = 2**22  # most numbers drawn at once: 32 MiB


def mean_percent(scores: Tensor) -> float:
    """100 times the mean of scores [Q] float64, without the NaN."""
    return 100 * float(counted(scores).mean())


def mean_interval(scores: Tensor) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of `mean_percent`: images that count are drawn with replacement.

    Equal numbers of images draw the same images, so that the intervals of all figures of a result are of one set of
    resamples.
    """
    values = counted(scores).numpy()
    random = generator(Purpose.BOOTSTRAP, len(values))
    means = np.concatenate(
        [values[random.integers(len(values), size=(n, len(values)))].mean(1) for n in blocks(len(values))]
    )
    return percentiles(means)


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


def bootstrap_test(difference: float, draws: np.ndarray) -> float:
    """The two-sided p-value of a difference by its bootstrap standard error, for figures that are no mean over images.

    The normal distribution takes the place of counting draws, whose smallest p-value would be too large to correct for
    many comparisons (Efron and Tibshirani, An introduction to the bootstrap, 1993, chapter 12).

    Args:
        difference: of two figures.
        draws: [R], the difference in resamples of the images, the same ones for both; NaN where it has no value.
    """
    from scipy.stats import norm

    error = float(draws[~np.isnan(draws)].std(ddof=1))
    if error == 0:
        return float(difference == 0)
    return float(2 * norm.sf(abs(difference) / error))


def counted(scores: Tensor) -> Tensor:
    """The scores of the images that count, on the CPU."""
    return scores[~scores.isnan()].cpu().to(torch.float64)


def blocks(images: int) -> list[int]:
    """`RESAMPLES`, as numbers of resamples of so many images that fit into memory together."""
    most = max(1, _AT_ONCE // images)
    return [min(most, RESAMPLES - start) for start in range(0, RESAMPLES, most)]
