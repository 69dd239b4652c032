"""Recall of the first k on random halves of queries and gallery, from which its spread follows.

Letters: Q queries, G gallery images, P divisions into halves, M nearest images of a query.
"""

from collections.abc import Sequence
from copy import copy

import numpy as np

from excb.inference.halves import divisions, enough

_AT_ONCE = 2**22  # ranks in memory at once: 32 MiB


class HalvesRecall:
    """Whether an image of a query's class is among the first k of its half, counted for every half.

    Args:
        labels: classes of the gallery, [G].
        targets: classes of the queries, [Q].
        ks: of the figures, K of them.
        shared: whether the gallery holds the queries themselves, in their order.
    """

    def __init__(self, labels: np.ndarray, targets: np.ndarray, ks: Sequence[int], *, shared: bool) -> None:
        self._targets, self._ks, self._shared = targets, ks, shared
        self._gallery = divisions(len(labels), of=0 if shared else 1)  # [P, G]
        self._queries = self._gallery if shared else divisions(len(targets))  # [P, Q]
        classes = int(max(labels.max(initial=0), targets.max(initial=0))) + 1
        # Images of every class in the first half and in the second, [P, 2, classes].
        self._sizes = np.stack(
            [[np.bincount(labels[half], minlength=classes) for half in (own, ~own)] for own in self._gallery]
        )
        self._sums = np.zeros((len(self._gallery), 2, len(ks)))
        self._counts = np.zeros((len(self._gallery), 2))

    @property
    def nearest(self) -> int:
        """M, how many of a query's nearest images are wanted."""
        return enough(max(self._ks))

    def add(self, first: int, order: np.ndarray, relevant: np.ndarray) -> None:
        """Count queries.

        Args:
            first: number of the first of them, n in all.
            order: [n, M] gallery images, the most similar first.
            relevant: [n, M] bool, whether each is of the query's class.
        """
        step = max(1, _AT_ONCE // (len(self._gallery) * max(1, order.shape[1])))
        for start in range(0, len(order), step):
            part = slice(start, start + step)
            self._add(np.arange(first + start, first + start + len(order[part])), order[part], relevant[part])

    def _add(self, queries: np.ndarray, order: np.ndarray, relevant: np.ndarray) -> None:
        own = self._queries[:, queries]  # [P, n]
        there = self._gallery[:, order] == own[:, :, None]
        ranks = np.where(there & relevant, there.cumsum(2, dtype=np.int32), np.iinfo(np.int32).max)
        best = ranks.min(2, initial=np.iinfo(np.int32).max)
        half = np.where(own, 0, 1)
        sizes = self._sizes[np.arange(len(own))[:, None], half, self._targets[queries]] - self._shared
        for number in (0, 1):
            counts = (half == number) & (sizes > 0)
            self._counts[:, number] += counts.sum(1)
            for place, k in enumerate(self._ks):
                self._sums[:, number, place] += (counts & (best <= k)).sum(1)

    @classmethod
    def merged(cls, parts: Sequence["HalvesRecall"]) -> "HalvesRecall":
        """The counts of several processes together, each of queries of its own."""
        merged = copy(parts[0])
        merged._sums = np.sum([part._sums for part in parts], axis=0)
        merged._counts = np.sum([part._counts for part in parts], axis=0)
        return merged

    def differences(self) -> np.ndarray:
        """Recall on the first half minus that on the second, [K, P]; NaN where a half has no query that counts."""
        counts = np.where(self._counts > 0, self._counts, np.nan)[:, :, None]
        recall = self._sums / counts
        return np.asarray((recall[:, 0] - recall[:, 1]).T)
