"""Candidates for the nearest rows in low precision, with a proven bound on their error.

Letters: N bank rows, Q queries, D feature width, k neighbours.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from excb.neighbours import backends, tiling
from excb.neighbours.centring import Centre
from excb.neighbours.precision import SINGLE, float32_error
from excb.neighbours.unit_rows import UnitRows


@dataclass(frozen=True)
class Proposal:
    """Candidates of Q queries. Values and floor may be lower than similarities by a number of each query's own."""

    rows: Tensor  # [Q, c] int64, ascending; -1 where a query has fewer
    values: Tensor  # [Q, c] float32, their approximate similarities, -inf where there is none
    floor: Tensor  # [Q] float32; every row with at least this value is a candidate. Infinite where there were too many
    error: Tensor  # [Q] float64, bounds |value - similarity| before the value was rounded
    rounding: float  # bounds the relative error of that last rounding


def least_value(kth: Tensor, error: Tensor, rounding: float) -> Tensor:
    """The value [Q] float64 below which no row is among the k best, if k candidates have values from `kth` on.

    Their similarities are at least kth - error, and a row that reaches that has a value of at least kth - 2 error.
    """
    cut = kth - rounding * kth.abs() - 2 * error
    return cut - rounding * cut.abs()


def propose_with_torch(bank: UnitRows, wanted: int, queries: Tensor, *, kind: torch.dtype, spread: int) -> Proposal:
    """Propose all rows above a floor that is estimated from a sample of the bank.

    Args:
        bank: N rows.
        wanted: number of neighbours to search for.
        queries: [Q, D] unit rows in float64.
        kind: precision of the products, float32 or bfloat16.
        spread: standard deviations by which the floor is lower than the estimate.
    """
    sample, order = _sample(bank, wanted, spread, queries.device)
    centre = Centre(sample, kind)
    centred = centre.queries(queries)
    low, in_sample = centred.low, centre.rows(sample).low
    together = min(tiling.BLOCK, max(1, 2 * tiling.BUDGET // len(in_sample)))
    floors = torch.cat([of_rank(some @ in_sample.T, order) for some in low.split(together)])
    table = _Table(tiling.table_width(len(bank), wanted, spread), floors)
    length, lost, lost_offset, step = 0.0, 0.0, 0.0, min(tiling.BLOCK, len(queries))
    for tile in tiling.spans(len(bank), max(step, bank.width), tiling.BUDGET, queries.device):
        rows = centre.rows(bank.approximate(tile))
        length, lost, lost_offset = max(length, rows.length), max(lost, rows.lost), max(lost_offset, rows.lost_offset)
        for start in range(0, len(queries), step):
            table.add(start, tile.start, low[start : start + step], rows.low)
    rounding = 0.0 if kind == torch.float32 else 0.51 * torch.finfo(kind).eps
    error = centre.error(centred, length, lost, lost_offset)
    return Proposal(table.rows, table.values, table.floor.float(), error, rounding)


def _sample(bank: UnitRows, wanted: int, spread: int, device: torch.device) -> tuple[Tensor, int]:
    """Unit rows [n, D] in float32 from all over the bank, and the rank among them that about 2 k of its rows pass."""
    count, order = tiling.sample_size(len(bank), wanted, spread)
    places = (torch.arange(count, dtype=torch.float64) * ((5**0.5 - 1) / 2) % 1 * len(bank)).long()
    sample = torch.empty(count, bank.width, device=device)
    for some in tiling.spans(count, bank.width, tiling.BUDGET, device):
        sample[some] = bank.pick(places[some].to(device))
    return sample, order


def of_rank(values: Tensor, rank: int) -> Tensor:
    """About the `rank`th highest of each row [n, m] -> [n]; exactly that where it is positive, or not in bfloat16."""
    if values.device.type != "cpu":
        return values.topk(rank).values[:, -1]
    # NumPy selects several times faster than torch. It has no bfloat16: see `_Table._above_floor`.
    numbers = values.view(torch.int16) if values.dtype == torch.bfloat16 else values
    found = np.partition(numbers.numpy(), -rank, axis=1)[:, -rank]
    return torch.from_numpy(found.copy()).view(values.dtype)


def propose_with_faiss(bank: UnitRows, wanted: int, queries: Tensor) -> Proposal:
    """Propose the `wanted` + SLACK best in float32; arguments are those of `propose_with_torch`."""
    count = wanted + tiling.SLACK
    low = queries.float()
    best, rows = low.new_empty(len(low), 0), low.new_empty(len(low), 0, dtype=torch.int64)
    for tile in tiling.spans(len(bank), bank.width, 8 * tiling.BUDGET, queries.device):
        values, places = backends.faiss_search(bank.approximate(tile), low, min(count, tile.stop - tile.start))
        best, order = torch.cat([best, values], 1).topk(min(count, tile.stop))
        rows = torch.cat([rows, places + tile.start], 1).gather(1, order)
    return best_proposal(best, rows, float32_error(bank.width) + 2 * SINGLE)


def propose_from_all(bank: UnitRows, wanted: int, queries: Tensor) -> Proposal:
    """Propose the `wanted` + SLACK best of all similarities with a `plain` bank, for a few queries at a time.

    A product of raw rows has the error of one of unit rows (`float32_error`), and the scale adds two roundings.
    """
    low, count = queries.float(), min(wanted + tiling.SLACK, len(bank))
    best, rows = low.new_empty(len(low), count), torch.empty(len(low), count, dtype=torch.int64, device=low.device)
    for few in tiling.spans(len(low), len(bank), tiling.CANDIDATES, torch.device("cpu")):
        values = low.new_empty(len(low[few]), len(bank))
        for tile in tiling.spans(len(bank), bank.width, 8 * tiling.BUDGET, queries.device):
            values[:, tile] = bank.products(low[few], tile)
        best[few], rows[few] = _highest(values, count)
    return best_proposal(best, rows, float32_error(bank.width) + 2 * SINGLE)


def _highest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest of each row [n, N], in order, and their places, [n, count] each."""
    if values.device.type != "cpu":
        found = values.topk(count)
        return found.values, found.indices
    # NumPy selects several times faster than torch.
    places = torch.from_numpy(np.argpartition(values.numpy(), -count, axis=1)[:, -count:].copy())
    best, order = values.gather(1, places).sort(dim=1, descending=True)
    return best, places.gather(1, order)


def best_proposal(best: Tensor, rows: Tensor, error: float) -> Proposal:
    """The best values [Q, c] of float32, the highest first, and their rows, with a bound on the error of all."""
    rows, order = rows.sort()
    floor = torch.nextafter(best[:, -1], torch.full_like(best[:, -1], math.inf))  # equals may be left out
    return Proposal(rows, best.gather(1, order), floor, torch.full_like(floor, error, dtype=torch.float64), 0.0)


class _Table:
    """Collects the rows above every query's floor, in the order of the bank."""

    def __init__(self, width: int, floor: Tensor) -> None:
        self._all_rows = torch.full((len(floor), width + 1), -1, device=floor.device)  # the last takes the excess
        self._all_values = torch.full((len(floor), width + 1), -math.inf, device=floor.device)
        self.rows, self.values = self._all_rows[:, :width], self._all_values[:, :width]
        self.floor = floor
        self._counts = torch.zeros(len(floor), dtype=torch.int64, device=floor.device)
        self._products = floor.new_empty(0)
        self._mask = torch.empty(0, dtype=torch.bool, device=floor.device)

    def add(self, first: int, start: int, queries: Tensor, rows: Tensor) -> None:
        """Add what is above the floor among the queries from `first` on and the rows from `start` on."""
        some = slice(first, first + len(queries))
        hits, values = self._above_floor(queries, rows, self.floor[some])
        query = hits.div(len(rows), rounding_mode="floor")
        counts = torch.bincount(query, minlength=len(queries))
        places = torch.arange(len(hits), device=hits.device)
        places += (self._counts[some] - counts.cumsum(0) + counts).index_select(0, query)
        self._counts[some] += counts
        width = self.rows.shape[1]
        self.floor[some].masked_fill_(self._counts[some] > width, math.inf)  # no more of this query
        slots = places.clamp_(max=width).add_((query + first) * (width + 1))
        self._all_rows.view(-1)[slots] = hits - query * len(rows) + start
        self._all_values.view(-1)[slots] = values

    def _above_floor(self, queries: Tensor, rows: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
        """Indices of the products that reach the floor, numbered row by row, and these products in float32.

        NumPy compares and counts several times faster than torch. It has no bfloat16, but the bits of such numbers,
        read as integers, compare the same way with any positive number. Memory is reused, because fresh memory costs
        as much as the comparison.
        """
        shape, count = (len(queries), len(rows)), len(queries) * len(rows)
        if len(self._mask) < count:
            self._products, self._mask = floor.new_empty(count), self._mask.new_empty(count)
        values, mask = self._products[:count].view(shape), self._mask[:count].view(shape)
        torch.mm(queries, rows.T, out=values)
        if values.device.type != "cpu" or (values.dtype == torch.bfloat16 and not bool((floor > 0).all())):
            hits = torch.ge(values, floor[:, None], out=mask).view(-1).nonzero()[:, 0]
        else:
            kind = torch.int16 if values.dtype == torch.bfloat16 else values.dtype
            np.greater_equal(values.view(kind).numpy(), floor[:, None].view(kind).numpy(), out=mask.numpy())
            hits = torch.from_numpy(np.flatnonzero(mask.numpy()))
        return hits, values.view(-1).index_select(0, hits).float()
