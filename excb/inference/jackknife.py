"""The jackknife: intervals and tests of figures that are no mean over images, such as mAP over classes or mean IoU.

The sampling unit is the image, or a group of images where there are many. Such a figure depends on how many images
there are: mAP falls and mIoU rises with more of them. The interval is about test sets of this size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from excb.inference.accuracy import COVERAGE, in_percent
from excb.seeding import Purpose, generator

MOST_GROUPS = 200
_AT_ONCE = 2**22  # most weights at once: 32 MiB
LEAST = 30  # units below which the interval's coverage is not near 95 %


@dataclass(frozen=True)
class Jackknife:
    """A figure and its spread.

    Attributes:
        value: the figure, or a difference of two, as a share of 1.
        error: its standard error; NaN with fewer than `LEAST` images.
        freedom: degrees of freedom of Student's t.
    """

    value: float
    error: float
    freedom: int

    @classmethod
    def of(cls, value: float, without: np.ndarray) -> "Jackknife":
        """By the values [G] without each of G groups of images (Tukey, 1958); NaN where there is none."""
        known = without[~np.isnan(without)]
        groups = len(known)
        if groups < LEAST:
            return cls(value, float("nan"), 1)
        error = np.sqrt((groups - 1) / groups * np.square(known - known.mean()).sum())
        return cls(value, float(error), groups - 1)

    def interval(self, *, lowest: float = 0.0) -> tuple[float, float] | None:
        """The 95 % interval in percent, from `lowest` (-1 of a difference) to 1; None of fewer than `LEAST` images."""
        from scipy.stats import t

        if np.isnan(self.error):
            return None
        half = float(t.ppf((1 + COVERAGE) / 2, self.freedom)) * self.error
        return in_percent(max(lowest, self.value - half), min(1.0, self.value + half))

    def p_value(self) -> float:
        """Two-sided, of the hypothesis that the value is 0; 1 with fewer than `LEAST` images, which say nothing."""
        from scipy.stats import t

        if np.isnan(self.error):
            return 1.0
        if self.error == 0:
            return float(self.value == 0)
        return float(2 * t.sf(abs(self.value) / self.error, self.freedom))


def mean_of(figures: Sequence[Jackknife]) -> Jackknife:
    """The mean of independent figures, such as those of several sets; the sampling unit stays the image."""
    error = np.sqrt(sum(one.error**2 for one in figures)) / len(figures)
    freedom = sum(one.freedom for one in figures)
    return Jackknife(float(np.mean([one.value for one in figures])), float(error), freedom)


def left_out(images: int) -> Iterator[np.ndarray]:
    """Which images remain without each group, in blocks [groups, images] int64 of 0 and 1.

    Images are divided into at most `MOST_GROUPS` groups at random, equally for all figures of equally many images.
    """
    groups = min(images, MOST_GROUPS)
    group = generator(Purpose.BOOTSTRAP, images, 3).permutation(np.arange(images) % groups)
    step = max(1, _AT_ONCE // images)
    for start in range(0, groups, step):
        yield (group != np.arange(start, min(start + step, groups))[:, None]).astype(np.int64)
