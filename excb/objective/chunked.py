"""The streamed loss in PyTorch, tile by tile: for CPUs, and wherever the kernels cannot run.

All tiles of scores share one buffer: it stays in the cache, and new memory would cost as much as the arithmetic.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from excb.exact import widened
from excb.objective.scores import Average, CentroidGradient, Scores

_ROWS, _CLUSTERS = 256, 1024  # a tile on one CPU thread: 1 MiB of scores beside 1 MiB of centroids
_PART = 64  # products in one partial sum
_ON_GPU = 16, 4  # factors of both on a GPU: 64 MiB of scores


def average(scores: Scores, values: Tensor | None, *, winners: bool) -> Average:
    """Average `values` by softmax(scores): see `excb.objective.scores.Operations`."""
    tiles, R = _Tiles(scores), len(scores.rows)
    mean = tiles.rows.new_zeros(R, 0 if values is None else values.shape[1])
    peak, raw_peak = (tiles.rows.new_full((R,), -math.inf) for _ in range(2))
    total = tiles.rows.new_zeros(R)
    winner, raw_winner = (torch.zeros(R, dtype=torch.int64, device=mean.device) for _ in range(2))
    for k in tiles.clusters():
        centroids = widened(scores.centroids[k])
        v = centroids if values is None or values is scores.centroids else widened(values[k])
        for r in tiles.spans():
            tile = tiles.similarities(r, centroids)
            if winners:
                _keep_best(tile, k, raw_peak[r], raw_winner[r])
            tiles.balance(tile, r, k)
            before = peak[r].clone()
            if winners:
                _keep_best(tile, k, peak[r], winner[r])
            else:
                torch.maximum(before, tile.amax(1), out=peak[r])
            decay = ((before - peak[r]) / scores.temperature).exp_()  # 0 in the first tile
            tiles.exponentiate(tile, peak[r])
            total[r] = total[r] * decay + tile.sum(1)
            if values is not None:
                mean[r].mul_(decay[:, None]).addmm_(tile, v)
    return Average(mean.div_(total[:, None]), peak, total, winner, raw_winner)


def centroid_gradient(student: CentroidGradient, teacher: CentroidGradient) -> Tensor:
    """Sum softmax(scores)^T vectors over student and teacher: see `excb.objective.scores.Operations`."""
    terms = [(term, _Tiles(term.scores), term.vectors * term.weights[:, None]) for term in (student, teacher)]
    out = teacher.vectors.new_zeros(student.scores.centroids.shape)
    for k in terms[0][1].clusters():
        for term, tiles, vectors in terms:
            centroids = widened(term.scores.centroids[k])
            for r in tiles.spans():
                tile = tiles.similarities(r, centroids)
                tiles.balance(tile, r, k)
                tiles.exponentiate(tile, term.peak[r])
                out[k].addmm_(tile.T, vectors[r])
    return out


class _Tiles:
    """Scores, tile by tile. Each tile overwrites the last."""

    def __init__(self, scores: Scores) -> None:
        self._scores = scores
        self.rows = widened(scores.rows)
        larger = (1, min(torch.get_num_threads(), 8)) if self.rows.device.type == "cpu" else _ON_GPU
        self._rows = min(len(self.rows), _ROWS * larger[0])
        self._clusters = min(len(scores.centroids), _CLUSTERS * larger[1])
        self._memory = self.rows.new_empty(self._rows * self._clusters)

    def spans(self) -> Iterator[slice]:
        """Spans of rows."""
        return (slice(start, start + self._rows) for start in range(0, len(self.rows), max(1, self._rows)))

    def clusters(self) -> Iterator[slice]:
        """Spans of clusters."""
        return (slice(start, start + self._clusters) for start in range(0, len(self._scores.centroids), self._clusters))

    def similarities(self, r: slice, centroids: Tensor) -> Tensor:
        """A tile of x . c."""
        x = self.rows[r]
        tile = self._memory[: len(x) * len(centroids)].view(len(x), len(centroids))
        # A sum of partial sums is more exact than one sum of all products, term by term.
        torch.mm(x[:, :_PART], centroids[:, :_PART].T, out=tile)
        for start in range(_PART, x.shape[1], _PART):
            tile.addmm_(x[:, start : start + _PART], centroids[:, start : start + _PART].T)
        return tile

    def balance(self, tile: Tensor, r: slice, k: slice) -> None:
        """Turn a tile of similarities into scores, in place."""
        if self._scores.balance is not None:
            scale, offset = self._scores.balance
            torch.addcmul(offset[k], tile, scale[k], out=tile)
        if self._scores.bounds is not None:
            tile.clamp_(*self._scores.bounds)
        if self._scores.replaced is not None:
            cluster, score = (part[r, None] for part in self._scores.replaced)
            column = (cluster - k.start).clamp_(0, tile.shape[1] - 1)
            here = column == cluster - k.start
            tile.scatter_(1, column, torch.where(here, score, tile.gather(1, column)))

    def exponentiate(self, tile: Tensor, peak: Tensor) -> None:
        """Turn a tile of scores into exp((score - peak) / temperature), in place."""
        # The peak is subtracted first: scores near it, which count, keep their digits.
        tile.sub_(peak[:, None]).mul_(1 / self._scores.temperature).exp_()


def _keep_best(tile: Tensor, k: slice, peak: Tensor, winner: Tensor) -> None:
    """Keep the highest score so far and its cluster, in place. Of equals the first wins, as in `max`."""
    highest, column = tile.max(1)
    torch.where(highest > peak, column.add_(k.start), winner, out=winner)
    torch.maximum(peak, highest, out=peak)
