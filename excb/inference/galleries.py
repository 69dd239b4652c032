"""Intervals and tests of retrieval figures, which depend on the queries and on the gallery.

The sampling units are the query and the gallery image. Where queries are each other's gallery, an image is both.
"""

from dataclasses import dataclass

import numpy as np

from excb.inference.estimate import LEAST, Estimate


@dataclass(frozen=True)
class GalleryScores:
    """Scores of queries, and what gallery images add to their sum.

    Attributes:
        scores: [Q] float64, NaN of queries that do not count.
        effects: [G] float64: the sum of scores minus what it is without each gallery image.
        shared: whether the gallery holds the queries themselves, in their order.
    """

    scores: np.ndarray
    effects: np.ndarray
    shared: bool

    def spread(self) -> Estimate:
        """The mean score with its spread: the jackknife over images, whose effects on the mean are known.

        Hoeffding (Annals of Mathematical Statistics, 1948): the variance of such a figure is that of the images' own
        parts, to first order.
        """
        counts = ~np.isnan(self.scores)
        number, images, mean = int(counts.sum()), len(self.effects), float(np.nanmean(self.scores))
        as_query = np.where(counts, self.scores - mean, 0.0) * len(counts) / number
        as_gallery = (self.effects - self.effects.mean()) * (images - 1) / number
        parts = [as_query + as_gallery] if self.shared else [as_query, as_gallery]
        if min(map(len, parts)) < LEAST:
            return Estimate(mean, float("nan"), 1)
        error = np.sqrt(sum(part.var(ddof=1) / len(part) for part in parts))
        return Estimate(mean, float(error), min(map(len, parts)) - 1)

    def lead_over(self, other: "GalleryScores") -> Estimate:
        """The difference of the means, this one minus the other's, on the same queries and gallery."""
        return GalleryScores(self.scores - other.scores, self.effects - other.effects, self.shared).spread()
