"""Scores of queries on random halves of queries and gallery, from which the spread of their means follows.

Letters: Q queries, n of them at once, G gallery images, P divisions into halves, M nearest images of a query.
"""

from collections.abc import Sequence

import numpy as np

from excb.inference.halves import as_bytes, divisions, enough, how_many

_AT_ONCE = 2**22  # ranks in memory at once: 32 MiB
_NEVER = np.iinfo(np.int32).max


class HalfScores:
    """R-precision, and whether one of a query's class is among the first k, for each query in its half.

    Args:
        labels: classes of the gallery, [G].
        targets: classes of the queries, [Q].
        ks: of recall.
        shared: whether the gallery holds the queries themselves, in their order.
    """

    def __init__(self, labels: np.ndarray, targets: np.ndarray, ks: Sequence[int], *, shared: bool) -> None:
        self._targets, self._ks, self._shared = targets, ks, shared
        number = how_many(len(targets))
        self._queries = divisions(len(targets), number=number)  # [P, Q]
        self._gallery = self._queries if shared else divisions(len(labels), number=number, of=1)  # [P, G]
        classes = int(max(labels.max(initial=0), targets.max(initial=0))) + 1
        # Images of every class in the first half and in the second, [P, 2, classes].
        self._sizes = np.stack(
            [[np.bincount(labels[half], minlength=classes) for half in (own, ~own)] for own in self._gallery]
        )
        self._parts: list[np.ndarray] = []

    def nearest(self, queries: slice) -> int:
        """M, how many nearest images of these queries are wanted."""
        relevant = int(self._sizes[:, :, self._targets[queries]].max(initial=1))
        return min(enough(max(*self._ks, relevant)), int(self._gallery.shape[1]))

    def add(self, first: int, order: np.ndarray, relevant: np.ndarray) -> None:
        """Score queries, the next ones.

        Args:
            first: number of the first of them.
            order: [n, M] gallery images, the most similar first.
            relevant: [n, M] bool, whether each is of the query's class.
        """
        step = max(1, _AT_ONCE // (len(self._gallery) * max(1, order.shape[1])))
        for start in range(0, len(order), step):
            part = slice(start, start + step)
            numbers = np.arange(first + start, first + start + len(order[part]))
            self._parts.append(as_bytes(self._scores(numbers, order[part], relevant[part])))

    def _scores(self, queries: np.ndarray, order: np.ndarray, relevant: np.ndarray) -> np.ndarray:
        """[1 + the number of ks, P, n] float64, R-precision first; NaN of a query without an image of its class."""
        own = self._queries[:, queries]  # [P, n]
        there = self._gallery[:, order] == own[:, :, None]
        ranks = np.where(there & relevant, there.cumsum(2, dtype=np.int32), _NEVER)
        sizes = self._sizes[np.arange(len(own))[:, None], np.where(own, 0, 1), self._targets[queries]] - self._shared
        best, counts = ranks.min(2, initial=_NEVER), np.maximum(sizes, 1)
        scores = np.stack([(ranks <= sizes[:, :, None]).sum(2) / counts, *(best <= k for k in self._ks)])
        return np.where(sizes > 0, scores, np.nan)

    def packed(self) -> np.ndarray:
        """The scores of the queries that were added, [1 + the number of ks, P, their number], by `as_bytes`."""
        none = np.zeros((1 + len(self._ks), len(self._queries), 0), np.uint8)
        return np.concatenate([none, *self._parts], 2)
