"""Coverage of intervals of a share, such as top-1, exactly by the binomial distribution: at a point and over a band.

Run: python -m benchmarks.coverage_shares
Prints a table of three intervals. A count of n images has n + 1 values, so that coverage jumps with the true share
wherever it passes an end of an interval (Brown, Cai and DasGupta, Statistical Science, 2001). The mean over a band of
true shares tells how an interval does (Newcombe, Statistics in Medicine, 1998), and its lowest value how badly.
"""

from collections.abc import Callable

import numpy as np
from scipy import stats

from excb.inference.accuracy import COVERAGE, share_interval

BAND = 0.02  # to either side of a share
IMAGES = (10, 30, 100, 400, 1000)
SHARES = (0.5, 0.9, 0.98)
_TAIL = (1 - COVERAGE) / 2
_HALVINGS, _POINTS = 50, 5000

Ends = tuple[np.ndarray, np.ndarray]  # low and high ends of the intervals of 0, 1, ... n hits, as shares of 1


def wilson(images: int) -> Ends:
    """The interval of `accuracy_interval`, as it is stored."""
    low, high = np.array([share_interval(hits / images, images) for hits in range(images + 1)]).T
    return low / 100, high / 100


def clopper_pearson(images: int) -> Ends:
    """The shares at which so many hits, or more, have a probability of 2.5 %, and likewise fewer."""
    hits = np.arange(images + 1)
    low = stats.beta.ppf(_TAIL, np.maximum(hits, 0.5), images - hits + 1)
    low[0] = 0.0
    return low, 1 - low[::-1]


def mid_p(images: int) -> Ends:
    """Clopper and Pearson's, where the seen number of hits counts by half, as in McNemar's test."""
    hits = np.arange(images + 1)
    low, high = np.zeros(images + 1), hits / images
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        more = stats.binom.sf(hits, images, middle) + stats.binom.pmf(hits, images, middle) / 2 > _TAIL
        low, high = np.where(more, low, middle), np.where(more, middle, high)
    low[0] = 0.0
    return low, 1 - low[::-1]


METHODS: dict[str, Callable[[int], Ends]] = {
    "Wilson (ours)": wilson,
    "Clopper and Pearson": clopper_pearson,
    "mid-P": mid_p,
}


def at(ends: Ends, share: float) -> float:
    """The probability that an interval holds a true share."""
    low, high = ends
    images = len(low) - 1
    return float(stats.binom.pmf(np.arange(images + 1), images, share)[(low <= share) & (share <= high)].sum())


def over(ends: Ends, lowest: float, highest: float) -> float:
    """The mean of `at` over true shares from `lowest` to `highest`, by the integral of the binomial probabilities."""
    low, high = (np.clip(end, lowest, highest) for end in ends)
    images = len(low) - 1
    hits = np.arange(images + 1)
    area = stats.beta.cdf(high, hits + 1, images - hits + 1) - stats.beta.cdf(low, hits + 1, images - hits + 1)
    return float(area.sum()) / (images + 1) / (highest - lowest)


def around(ends: Ends, share: float) -> float:
    """The mean over the band of `BAND` to either side of a share."""
    return over(ends, share - BAND, min(1.0, share + BAND))


def reachable(images: int, share: float, *, all_right: bool) -> list[float]:
    """The probabilities of all runs of counts that an interval can hold a share for.

    Args:
        images: how many.
        share: the true one.
        all_right: of runs that hold it where all images are right; else of those that do not.
    """
    below = np.r_[0.0, stats.binom.cdf(np.arange(images + 1), images, share)]
    lasts = [images + 1] if all_right else range(1, images + 1)
    return [float(below[last] - below[first]) for last in lasts for first in range(last)]


def main() -> None:
    """Print the table."""
    print("| images, interval | mean of 50 to 99.9 % | lowest | " + " | ".join(f"{s:.0%} ± 2" for s in SHARES) + " |")
    print("| --- " * (3 + len(SHARES)) + "|")
    for images in IMAGES:
        for name, method in METHODS.items():
            ends = method(images)
            lowest = min(at(ends, share) for share in np.linspace(0.5, 0.999, _POINTS))
            cells = [over(ends, 0.5, 0.999), lowest, *(around(ends, share) for share in SHARES)]
            print(f"| {images:,}, {name} | " + " | ".join(f"{100 * cell:.1f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
