"""Scores of a ranking, and the effect of each gallery image on them: how much they change without it.

Letters: Q queries, G gallery images, R relevant images of a query, W weights (`inference.galleries.weights`).
"""

from collections.abc import Callable, Sequence

import numpy as np

from excb.inference.galleries import weights

# A score is a sum over relevant images of what each adds, by its place among them, its rank and their number R.
Terms = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def precision_terms(places: np.ndarray, ranks: np.ndarray, relevant: int) -> np.ndarray:
    """Of average precision: the precision at each relevant image."""
    terms: np.ndarray = places / ranks / relevant
    return terms


def r_precision_terms(_places: np.ndarray, ranks: np.ndarray, relevant: int) -> np.ndarray:
    """Of R-precision: whether a relevant image is among the first R."""
    return (ranks <= relevant) / relevant


def recall_terms(k: int) -> Terms:
    """Of recall@k: whether the first relevant image is among the first k."""
    return lambda places, ranks, _relevant: ((places == 1) & (ranks <= k)).astype(np.float64)


def score_of(terms: Terms, ranks: np.ndarray) -> float:
    """The score of a query, 0 to 1, from the ranks of its relevant images, [R] ascending from 1; NaN without one."""
    relevant = len(ranks)
    return float(terms(np.arange(1, relevant + 1), ranks, relevant).sum()) if relevant else float("nan")


class GalleryEffects:
    """Weighted sums, over queries, of each score with a gallery image minus the score without it.

    Each is exact: without an irrelevant image, the relevant ones below it move up by one; without a relevant one, there
    is one less of them.

    Args:
        images: G.
        queries: Q, of all processes.
        measures: of the figures, F of them.
    """

    def __init__(self, images: int, queries: int, measures: Sequence[Terms]) -> None:
        self._measures, self._weights = measures, weights(queries)
        self._sums = np.zeros((len(measures), len(self._weights), images))
        self._single = np.zeros_like(self._sums)  # scores of queries that lose their only relevant image
        self._singles = np.zeros((len(self._weights), images))  # how many such queries

    def add(self, query: int, order: np.ndarray, relevant: np.ndarray) -> None:
        """Count a query.

        Args:
            query: its number.
            order: [G] gallery images, the most similar first.
            relevant: [G] bool, whether each of these is relevant.
        """
        ranks = np.flatnonzero(relevant) + 1
        if not len(ranks):
            return
        above, own = np.cumsum(relevant), self._weights[:, query]  # relevant images up to each rank; weights
        first = order[ranks[0] - 1]
        for number, terms in enumerate(self._measures):
            value, without_other, without_own = _scores(terms, ranks)
            effects = np.where(relevant, 0.0, value - without_other[above])
            if len(ranks) > 1:
                effects[ranks - 1] = value - without_own
            else:
                self._single[number, :, first] += own * value
            self._sums[number][:, order] += own[:, None] * effects
        if len(ranks) == 1:
            self._singles[:, first] += own

    def of_mean(self, means: np.ndarray) -> np.ndarray:
        """Effects [F, W, G] on the sums over the queries that counted here.

        Args:
            means: [F], of all queries; without its only relevant image a query leaves the mean.
        """
        effects: np.ndarray = self._sums + self._single - means[:, None, None] * self._singles
        return effects


def _scores(terms: Terms, ranks: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """A query's score; without an irrelevant image below 0, 1, ..., R relevant ones [R + 1]; without each one [R]."""
    relevant, places = len(ranks), np.arange(1, len(ranks) + 1)
    raised = np.maximum(ranks - 1, 1)  # rank 1 is below nothing
    here = np.append(0, np.cumsum(terms(places, ranks, relevant)))
    moved = np.append(0, np.cumsum(terms(places, raised, relevant)))
    without_other = here + moved[-1] - moved
    if relevant == 1:
        return float(here[-1]), without_other, np.array([np.nan])
    before = np.append(0, np.cumsum(terms(places, ranks, relevant - 1)))[:-1]
    after = np.append(0, np.cumsum(terms(places - 1, raised, relevant - 1)))
    return float(here[-1]), without_other, before + after[-1] - after[1:]
