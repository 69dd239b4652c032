"""Intervals and tests of retrieval figures, which depend on the queries and on the gallery.

The sampling units are the query and the gallery image. Where queries are each other's gallery, an image is both.
"""

import math
from dataclasses import dataclass

import numpy as np

from excb.inference.estimate import LEAST, Estimate
from excb.seeding import Purpose, generator

SIGNED = 4  # sums of effects with random signs


def weights(queries: int) -> np.ndarray:
    """Weights of queries in sums of effects, [1 + `SIGNED`, Q]: 1, then 1 for half of them at random, and -1.

    The squares of the sums with signs tell how far the queries' effects differ, without keeping each.
    """
    signs, random = np.where(np.arange(queries) % 2 == 0, 1.0, -1.0), generator(Purpose.BOOTSTRAP, queries, 7)
    return np.stack([np.ones(queries), *(random.permutation(signs) for _ in range(SIGNED))])


@dataclass(frozen=True)
class GalleryScores:
    """Scores of queries, and what gallery images add to their sum.

    Attributes:
        scores: [Q] float64, NaN of queries that do not count.
        effects: [1 + `SIGNED`, G] float64: the sum of scores, with each row of `weights`, minus what it is without
            each gallery image.
        shared: whether the gallery holds the queries themselves, in their order.
    """

    scores: np.ndarray
    effects: np.ndarray
    shared: bool

    def spread(self) -> Estimate:
        """The mean score with its spread: the jackknife over images, whose effects on the mean are known.

        Hoeffding (Annals of Mathematical Statistics, 1948): the variance of such a figure is that of the images' own
        parts, to first order. Each part also has the variance of what a query and a gallery image do together, which
        counts once (Cameron, Gelbach and Miller, Journal of Business & Economic Statistics, 2011).
        """
        counts = ~np.isnan(self.scores)
        number, images, mean = int(counts.sum()), self.effects.shape[1], float(np.nanmean(self.scores))
        as_query = np.where(counts, self.scores - mean, 0.0) * len(counts) / number
        as_gallery = (self.effects[0] - self.effects[0].mean()) * (images - 1) / number
        parts = [as_query + as_gallery] if self.shared else [as_query, as_gallery]
        if min(map(len, parts)) < LEAST:
            return Estimate(mean, float("nan"), 1)
        separate = sum(float(part.var(ddof=1)) / len(part) for part in parts)
        together = float(np.square((images - 1) * self.effects[1:] / (number * images)).mean(0).sum())
        return Estimate(mean, math.sqrt(max(separate - together, separate / 2)), min(map(len, parts)) - 1)

    def lead_over(self, other: "GalleryScores") -> Estimate:
        """The difference of the means, this one minus the other's, on the same queries and gallery."""
        return GalleryScores(self.scores - other.scores, self.effects - other.effects, self.shared).spread()
