"""Exact k nearest rows by cosine: fast candidates in low precision with a proven error, then float64 for these few.

Letters: N bank rows, Q queries, D feature width, k neighbours.

A backend only proposes candidates (`excb.neighbours.proposals`). The bound on its error says which of them may be among
the k best, and these are compared in float64. Queries that remain undecided are searched again in a higher precision:
first bfloat16 where the processor is fast in it, then float32, then float64 on all rows. The result therefore depends
neither on the backend nor on the device, the tiling or the division of the bank. Beyond the inputs and the result only
a few tiles are in memory, never a Q x N matrix.
"""

import functools
import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from excb.neighbours import backends, tiling
from excb.neighbours.half_rows import MOST_QUERIES, HalfRows
from excb.neighbours.precision import GRID, float64_error, rounded_dots, split
from excb.neighbours.proposals import (
    Proposal,
    least_value,
    of_rank,
    propose_from_all,
    propose_with_faiss,
    propose_with_torch,
)
from excb.neighbours.unit_rows import UnitRows


@dataclass(frozen=True)
class Search:
    """The search of one bank for the k nearest rows."""

    bank: UnitRows
    k: int
    backend: Literal["faiss", "torch"]
    exclude_self: bool
    halves: HalfRows | None = None  # the bank's rows once more, for a few queries

    @property
    def round(self) -> int:
        """Number of queries to search together: the bank is read once, rarely twice, for all of them."""
        return tiling.queries_at_once(len(self.bank), self.bank.width, self._wanted)

    @property
    def _wanted(self) -> int:
        return self.k + self.exclude_self

    def run(self, queries: Tensor, own: Tensor, progress: Callable[[int], None]) -> tuple[Tensor, Tensor]:
        """Return similarities and rows, [Q, k] each, for unit queries [Q, D] that exclude the rows `own` [Q]."""
        similarities, rows = queries.new_empty(len(queries), self.k), own.new_empty(len(queries), self.k)
        remaining = torch.arange(len(queries), device=queries.device)
        for propose in self._proposers(len(queries)):
            undecided = []
            proposal = propose(queries[remaining])
            for block in tiling.spans(len(remaining), proposal.rows.shape[1], tiling.BUDGET, queries.device):
                decided, candidates = self._narrow(proposal, block)
                some = remaining[block][decided]
                undecided.append(remaining[block][~decided])
                if len(some):
                    similarities[some], rows[some] = self._compare(queries[some], own[some], candidates)
                    progress(len(some))
            remaining = torch.cat(undecided)
            if not len(remaining):
                return similarities, rows
        similarities[remaining], rows[remaining] = self._search_all(queries[remaining], own[remaining])
        progress(len(remaining))
        return similarities, rows

    def _proposers(self, queries: int) -> list[Callable[[Tensor], Proposal]]:
        """Functions that propose candidates, the fastest first; none where the candidates would be most of the bank."""
        if tiling.table_width(len(self.bank), self._wanted) >= len(self.bank):
            return []
        if self.halves is None or queries > MOST_QUERIES:
            return self._from_the_bank(queries)
        return [functools.partial(self.halves.propose, self._wanted), *self._from_the_bank(queries)]

    def _from_the_bank(self, queries: int) -> list[Callable[[Tensor], Proposal]]:
        """Functions that read the bank's own rows."""
        from_all = [functools.partial(propose_from_all, self.bank, self._wanted)] if self.bank.plain else []
        if from_all and tiling.few_at_once(len(self.bank), queries):
            return [*from_all]
        if self.backend == "faiss":
            return [functools.partial(propose_with_faiss, self.bank, self._wanted)]
        with_torch = functools.partial(propose_with_torch, self.bank, self._wanted)
        proposers = [functools.partial(with_torch, kind=torch.float32, spread=2 * tiling.SPREAD)]
        if queries * len(self.bank) >= tiling.WORTH and backends.bfloat16_pays(self.bank.device, self.bank.width):
            proposers.insert(0, functools.partial(with_torch, kind=torch.bfloat16, spread=tiling.SPREAD))
        return [*proposers, *from_all]  # chance sets the floors of a few queries too high or too low

    def _narrow(self, proposal: Proposal, block: slice) -> tuple[Tensor, Tensor]:
        """Return which queries are decided, and their rows that may be among the k best, [decided, m] and padded by -1.

        If the floor is not above the least value of such rows, they are among the candidates.
        """
        values, rows = proposal.values[block], proposal.rows[block]
        kth = of_rank(values, self._wanted).double()
        cut = least_value(kth, proposal.error[block], proposal.rounding)
        decided = kth.isfinite() & (proposal.floor[block] <= cut)
        keep = values[decided] >= cut[decided, None]
        places = keep.cumsum(1) - 1
        width = int(places[:, -1].max()) + 1 if len(keep) else 0
        candidates = rows.new_full((len(keep), width + 1), -1)  # the last column takes what is not kept
        candidates.scatter_(1, torch.where(keep, places, width), rows[decided])
        return decided, candidates[:, :width]

    def _compare(self, queries: Tensor, own: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Return the k best of each query's candidates.

        Quick float64 similarities depend on shapes and device in their last bits. The exact ones of `dots` do not, but
        take three times as long. Rounded to GRID both are equal, except near a rounding boundary. Only there, and only
        for rows that may be among the k best, the exact ones are computed.
        """
        similarities = self._quick(queries, candidates)
        error = float64_error(queries.shape[1]) if self.bank.moderate else math.inf
        kth = of_rank(similarities, self._wanted)[:, None]
        possible = similarities >= kth - (2 * error + 2 * GRID)
        steps = similarities.div_(GRID)
        rounded = steps.round()
        doubtful = possible & (candidates >= 0) & ((steps - rounded).abs() >= 0.5 - error / GRID)
        similarities = rounded.mul_(GRID).masked_fill_(~possible, -math.inf)
        pairs = doubtful.nonzero()
        for some in tiling.spans(len(pairs), queries.shape[1], tiling.CACHED, queries.device):
            query, place = pairs[some].unbind(1)
            left, right = queries[query, None], self.bank.pick(candidates[query, place])[:, None]
            similarities[query, place] = rounded_dots(split(left), split(right))[:, 0, 0]
        return _best(similarities, candidates, own, self.k)

    def _quick(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Similarities [Q, m] in float64 with the candidates, -inf where there is no candidate."""
        similarities, counts = queries.new_zeros(candidates.shape), (candidates >= 0).sum(1)
        if not self.bank.moderate:
            return similarities.masked_fill_(candidates < 0, -math.inf)  # all are doubtful then
        if queries.device.type == "cpu" and int(counts.sum()) >= len(self.bank):
            self._dots_by_tiles(queries, candidates, similarities)
            return similarities.mul_(self.bank.scales[candidates.clamp(min=0)]).masked_fill_(candidates < 0, -math.inf)
        D, rows = queries.shape[1], candidates.clamp(min=0)
        # Memory is reused, because fresh memory costs as much as the arithmetic.
        memory = queries.new_empty(max(tiling.budget_on(tiling.CACHED, queries.device), candidates.shape[1] * D))
        for some in tiling.spans(len(queries), candidates.shape[1] * D, tiling.CACHED, queries.device):
            few = rows[some, : int(counts[some].max())]
            raw = memory[: few.numel() * D].view(*few.shape, D)
            raw.view(-1, D).copy_(self.bank.raw(few.flatten()))
            similarities[some, : few.shape[1]] = (raw @ queries[some, :, None])[:, :, 0]
        return similarities.mul_(self.bank.scales[rows]).masked_fill_(candidates < 0, -math.inf)

    def _dots_by_tiles(self, queries: Tensor, candidates: Tensor, dots: Tensor) -> None:
        """Write the float64 dot products of queries [Q, D] with the raw rows of their candidates [Q, m] into `dots`.

        Each tile of the bank is turned into float64 once and meets the queries that want rows of it: four times as fast
        as collecting each query's rows, where candidates outnumber the bank's rows.
        """
        step = max(1, tiling.BUDGET // self.bank.width)
        query, place = (candidates >= 0).nonzero().unbind(1)
        row = candidates[query, place]
        numbers, order = row.div(step, rounding_mode="floor").sort(stable=True)
        ends = torch.bincount(numbers, minlength=-(-len(self.bank) // step)).cumsum(0).tolist()
        for number, (start, end) in enumerate(itertools.pairwise([0, *ends])):
            if start == end:
                continue
            some = order[start:end]
            tile = self.bank.raw_span(slice(number * step, (number + 1) * step)).double()
            counts = torch.bincount(query[some], minlength=len(queries))
            dots[query[some], place[some]] = _chosen_products(queries, tile, counts, row[some] - number * step)

    def _search_all(self, queries: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        N, D, budget, device = len(self.bank), self.bank.width, tiling.BUDGET, queries.device
        best, rows = queries.new_empty(len(queries), self.k), own.new_empty(len(queries), self.k)
        for some in tiling.spans(len(queries), max(tiling.BLOCK + self.k, D), budget, device):
            top, places, left = best[some, :0], rows[some, :0], split(queries[some])
            for tile in tiling.spans(N, max(some.stop - some.start, D), budget, device):
                similarities = rounded_dots(left, split(self.bank[tile]))
                tiled = torch.arange(tile.start, tile.stop, device=own.device).expand(similarities.shape)
                top, places = _best(torch.cat([top, similarities], 1), torch.cat([places, tiled], 1), own[some], self.k)
            best[some], rows[some] = top, places
        return best, rows


def _chosen_products(left: Tensor, right: Tensor, counts: Tensor, columns: Tensor) -> Tensor:
    """Elements of left [m, D] @ right [n, D].T: `counts` [m] of each row in turn, of these `columns`."""
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        pattern = torch.sparse_csr_tensor(
            starts, columns, left.new_zeros(len(columns)), (len(left), len(right)), check_invariants=False
        )
    products: Tensor = torch.sparse.sampled_addmm(pattern, left, right.T, beta=0.0).values()
    return products


def _best(similarities: Tensor, rows: Tensor, own: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best of each row in order. Equals are in the order of their index, and a stable sort keeps it."""
    ranked, order = similarities.masked_fill(rows == own[:, None], -math.inf).sort(dim=1, descending=True, stable=True)
    return ranked[:, :k].contiguous(), rows.gather(1, order[:, :k])
