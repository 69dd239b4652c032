"""Spread of figures of nearest neighbours: images are divided into halves at random, and the halves are compared.

The sampling units are the query and the gallery image; where queries are each other's gallery, an image is both, and
stays in one half. Answers to queries that share neighbours depend on each other, so that queries alone find too little
spread. Whether the nearest image is right changes at once where an image leaves, so that the jackknife finds up to
twice the true spread. The two halves of a division are independent samples: what their difference scatters more than
that of as many independent queries is the part of the variance that shared neighbours add. The rest is not taken from
halves, since queries that have fewer images to find score otherwise, and scatter otherwise.
"""

import math
from dataclasses import dataclass

import numpy as np

from excb.inference.accuracy import share_interval
from excb.inference.estimate import LEAST, Estimate
from excb.inference.means import standard_error
from excb.seeding import Purpose, generator

MOST_DIVISIONS, LEAST_DIVISIONS = 100, 25
_MOST_SCORES = 10**6  # of queries on halves that are kept
_STEPS, _NONE = 200, 255  # a score on a half is stored in a byte


@dataclass(frozen=True)
class HalvedMean(Estimate):
    """A mean of scores between 0 and 1.

    Attributes:
        units: how many independent queries say as much, where all scores are 1, or all 0.
    """

    units: float

    def interval(self, *, lowest: float = 0.0, tries: int = 1) -> tuple[float, float] | None:
        """Wilson's interval in percent for as many independent hits as have this error.

        Korn and Graubard (Survey Methodology, 1998) take the number of units, and Student's t, in this way.
        """
        if math.isnan(self.error):
            return None
        between = 0 < self.value < 1 and self.error > 0
        units = self.value * (1 - self.value) / self.error**2 if between else self.units
        low, high = share_interval(self.value, units, quantile=self.quantile(tries=tries))
        return max(100 * lowest, low), high


def how_many(queries: int) -> int:
    """P, the number of divisions of so many queries."""
    return min(MOST_DIVISIONS, max(LEAST_DIVISIONS, _MOST_SCORES // max(1, queries)))


def divisions(images: int, *, number: int | None = None, of: int = 0) -> np.ndarray:
    """Which images are in the first half, [P, images] bool; the same for all figures of equally many images.

    Args:
        images: how many.
        number: P; by default that of as many queries.
        of: 0 of images that are queries; 1 of a gallery of its own.
    """
    random, first = generator(Purpose.BOOTSTRAP, images, 6, of), np.arange(images) < images // 2
    return np.stack([random.permutation(first) for _ in range(how_many(images) if number is None else number)])


def halved_mean(scores: np.ndarray, on_halves: np.ndarray, *, gallery: int | None = None) -> HalvedMean:
    """A figure with its spread.

    Args:
        scores: [Q] of the queries, 0 to 1; NaN of those that do not count.
        on_halves: [P, Q] of each query in its half of `divisions`, likewise.
        gallery: images of a gallery of its own.

    Returns:
        An error of NaN with fewer than twice `LEAST` queries that count, or images of the gallery.
    """
    known, excess, freedom = _known(scores, on_halves, gallery)
    value, images = float(known.mean()), len(known)
    near = (images * value + 0.5) / (images + 1)
    units = near * (1 - near) / _variance(near * (1 - near) / images, excess)
    return HalvedMean(value, _error(known, excess, freedom), freedom or 1.0, units)


def halved_lead(differences: np.ndarray, on_halves: np.ndarray, *, gallery: int | None = None) -> Estimate:
    """The difference of two figures of the same queries; arguments as of `halved_mean`, of differences of scores.

    Where no query differs, two more, one for either side, give it a width, as Agresti and Min do for hits.
    """
    known, excess, freedom = _known(differences, on_halves, gallery)
    spread = known if known.any() else np.append(known, [1.0, -1.0])
    return Estimate(float(known.mean()), _error(spread, excess, freedom), freedom or 1.0)


def _error(scores: np.ndarray, excess: float, freedom: float) -> float:
    return math.sqrt(_variance(standard_error(scores) ** 2, excess)) if freedom else math.nan


def _variance(independent: float, excess: float) -> float:
    """The variance of the mean. An excess below 0 by chance counts: without it, errors are too large on average."""
    return max(independent + excess, independent / 2)


def _known(scores: np.ndarray, on_halves: np.ndarray, gallery: int | None) -> tuple[np.ndarray, float, float]:
    """Scores that count, `excess`, and degrees of freedom, which are 0 where too little is known."""
    scores, on_halves = np.asarray(scores, np.float64), np.asarray(on_halves, np.float64)
    known = scores[~np.isnan(scores)]
    fewest = min(len(known), len(known) if gallery is None else gallery)
    if fewest < 2 * LEAST:
        return known, 0.0, 0.0
    return known, excess(on_halves), 1 / (1 / len(on_halves) + 1 / (fewest - 1))


def excess(on_halves: np.ndarray) -> float:
    """The variance of the mean over all queries beyond that of independent ones, of either sign.

    The difference of two halves has four times the variance of the mean over all. `on_halves` as of `halved_mean`.
    """
    first = divisions(on_halves.shape[1], number=len(on_halves))
    counts = ~np.isnan(on_halves)
    scores = np.where(counts, on_halves, 0.0)
    means, variances = [], []
    for half in (first & counts, ~first & counts):
        images = np.maximum(2, half.sum(1))
        mean = (scores * half).sum(1) / images
        means.append(mean)
        variances.append(((np.square(scores) * half).sum(1) / images - mean**2) / (images - 1))
    return float((np.square(means[0] - means[1]) - variances[0] - variances[1]).mean()) / 4


def as_bytes(scores: np.ndarray) -> np.ndarray:
    """Scores between 0 and 1, or NaN, as bytes of the same shape: to a two-hundredth."""
    known = ~np.isnan(scores)
    return np.where(known, np.rint(_STEPS * np.where(known, scores, 0.0)), _NONE).astype(np.uint8)


def from_bytes(stored: np.ndarray) -> np.ndarray:
    """The inverse of `as_bytes`, float64."""
    return np.where(stored == _NONE, np.nan, stored / _STEPS)


def enough(k: int) -> int:
    """How many nearest images of each query are needed, so that its half holds k of them but for rare cases."""
    return 2 * k + 8 * (math.isqrt(k - 1) + 1)
