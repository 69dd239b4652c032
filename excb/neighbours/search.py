"""Exact k nearest rows by cosine: quick proposals in low precision with a proven error, then float64 for the few left.

Letters: N bank rows, Q queries, D feature width, k neighbours.

A back end only proposes candidates. With a bound on its error those that may be among the k best are known, and are
compared in float64; queries it cannot decide go to the next, more precise one: bfloat16 where the processor is fast in
it, then float32, then float64 on all rows. So the answer depends neither on the back end nor on the device, the tiling
or the division of the bank, and beyond the inputs and the answer only a few tiles are in memory, never a Q x N matrix.
"""

import functools
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from excb.errors import UserError

CANDIDATES = 2**24  # most candidates in the table of a round of queries: 192 MiB
_BLOCK = 512  # queries that meet a tile at once
_BUDGET = 2**21  # most elements of a tile of similarities, and rows x D of a tile of the bank: what caches hold
_CACHED = 2**17  # the same where many elementwise steps follow
GRID = 2.0**-36  # what similarities are rounded to: see Search._compare
_SAMPLE = 8192  # bank rows from which a query's floor is estimated
_SPREAD = 4  # standard deviations by which a floor is lower than seems right; twice as many where all is repeated
_SLACK = 32  # candidates of FAISS beyond k
_WORTH = 2**27  # similarities from which bfloat16 is tried: fewer take no time anyhow
_SINGLE = 6.1 * 2.0**-24  # what UnitRows.approximate loses
_ON_GPU = 32  # how much larger all tiles are on a GPU


class Rows(Protocol):
    """Features [N, width] of which any span can be read, however large the whole."""

    @property
    def width(self) -> int:
        """D."""

    def __len__(self) -> int:
        """N."""

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows [stop - start, D] of any real type."""


class UnitRows:
    """The rows of a matrix, normalised in float64 when some are asked for; never all of them at once.

    Rows are divided by their largest magnitude first: no square overflows, and rows that are positive multiples of one
    another become the same bits. All steps are elementwise, so that these bits depend neither on where a row lies nor
    on the device.

    Args:
        source: [N, D] of any real type.
        name: what one is, for messages.
        device: where unit rows are wanted.
        part: the rows to look at, by default all.

    Attributes:
        width: D.
        device: where unit rows are wanted.
        scales: [N] float64, what makes a raw row a unit row but for rounding.
        moderate: whether products of raw rows and scales stay far from overflow and underflow.

    Raises:
        UserError: a feature is NaN or infinite.
    """

    def __init__(self, source: Tensor | Rows, name: str, device: torch.device, part: slice | None = None) -> None:
        whole = slice(0, len(source)) if part is None else part
        self._source, self.device, self._first = source, device, whole.start
        self._length = whole.stop - whole.start
        self.width = source.shape[1] if isinstance(source, Tensor) else source.width
        self._peaks, self._inverse = torch.ones(2, self._length, 1, dtype=torch.float64, device=device)
        for rows in spans(self._length, self.width, _CACHED, device):
            values = self._raw(rows).double()
            peak = values.abs().amax(1, keepdim=True)
            if not peak.isfinite().all():
                raise UserError(f"a {name} feature is NaN or infinite: check the encoder and the images it was given")
            self._peaks[rows] = torch.where(peak > 0, peak, 1.0)
            squares = (values / self._peaks[rows]).square_()
            while (width := squares.shape[1]) > 1:  # Halving: sum() may add in an order of its own on every device.
                half = (width + 1) // 2
                squares[:, : width - half] += squares[:, half:]
                squares = squares[:, :half]
            self._inverse[rows] = 1 / squares.sqrt().clamp(min=1.0)  # at least 1 by the division, except in zero rows

        self.moderate = bool(((self._peaks > 2.0**-200) & (self._peaks < 2.0**200)).all())
        self.scales = (self._inverse / self._peaks)[:, 0]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, rows: slice) -> Tensor:
        return torch.div(self._raw(rows), self._peaks[rows]).mul_(self._inverse[rows])

    def approximate(self, rows: slice) -> Tensor:
        """Unit rows in float32; no coordinate is off by more than 6 x 2^-24 of itself."""
        raw = self._raw(rows)
        kind = torch.promote_types(raw.dtype, torch.float32)
        return torch.div(raw, self._peaks[rows].to(kind)).mul_(self._inverse[rows].to(kind)).float()

    def pick(self, rows: Tensor) -> Tensor:
        """Unit rows [n, D] of the given numbers [n]."""
        return torch.div(self.raw(rows), self._peaks.index_select(0, rows)).mul_(self._inverse.index_select(0, rows))

    def raw(self, rows: Tensor) -> Tensor:
        """Rows [n, D] of the given numbers [n] as they are."""
        if isinstance(self._source, Tensor):
            return self._source.detach().index_select(0, (rows + self._first).to(self._source.device)).to(self.device)
        return torch.cat([self._source.rows(row, row + 1) for row in (rows + self._first).tolist()]).to(self.device)

    def _raw(self, rows: slice) -> Tensor:
        start, stop = rows.start + self._first, min(rows.stop, self._length) + self._first
        raw = self._source[start:stop] if isinstance(self._source, Tensor) else self._source.rows(start, stop)
        return raw.detach().to(self.device)


@dataclass(frozen=True)
class _Proposal:
    """Candidates of Q queries.

    Attributes:
        rows: [Q, c] int64, ascending; -1 where a query has fewer.
        values: [Q, c] float32, their approximate similarities, -inf where there is none.
        floor: [Q] float32; every row with a value from here on is a candidate. Infinite where there were too many.
        error: [Q] float64, bounds |value - similarity| before the value was rounded.
        rounding: bounds the relative error of that last rounding.
    """

    rows: Tensor
    values: Tensor
    floor: Tensor
    error: Tensor
    rounding: float


@dataclass(frozen=True)
class Search:
    """The search of one bank for the k rows nearest to queries."""

    bank: UnitRows
    k: int
    backend: Literal["faiss", "torch"]
    exclude_self: bool

    @property
    def round(self) -> int:
        """How many queries to search together: the bank is read once, seldom twice, for all of them."""
        return _round(len(self.bank), self.bank.width, self._wanted)

    @property
    def _wanted(self) -> int:
        return self.k + self.exclude_self

    def run(self, queries: Tensor, own: Tensor, progress: Callable[[int], None]) -> tuple[Tensor, Tensor]:
        """Return similarities and rows, [Q, k] each, of unit queries [Q, D] that must not find the rows `own` [Q]."""
        similarities, rows = queries.new_empty(len(queries), self.k), own.new_empty(len(queries), self.k)
        open_ = torch.arange(len(queries), device=queries.device)
        for propose in self._ways(len(queries)):
            undecided = []
            proposal = propose(queries[open_])
            for block in spans(len(open_), proposal.rows.shape[1], _BUDGET, queries.device):
                chosen, candidates = self._narrow(proposal, block)
                some = open_[block][chosen]
                undecided.append(open_[block][~chosen])
                if len(some):
                    similarities[some], rows[some] = self._compare(queries[some], own[some], candidates)
                    progress(len(some))
            open_ = torch.cat(undecided)
            if not len(open_):
                return similarities, rows
        similarities[open_], rows[open_] = self._search_all(queries[open_], own[open_])
        progress(len(open_))
        return similarities, rows

    def _ways(self, queries: int) -> list[Callable[[Tensor], _Proposal]]:
        """How to propose, the quickest first; none where the candidates would be most of the bank."""
        if _table_width(len(self.bank), self._wanted) >= len(self.bank):
            return []
        if self.backend == "faiss":
            return [self._propose_with_faiss]
        ways = [functools.partial(self._propose_with_torch, torch.float32, 2 * _SPREAD)]
        if queries * len(self.bank) >= _WORTH and bfloat16_pays(self.bank.device, self.bank.width):
            ways.insert(0, functools.partial(self._propose_with_torch, torch.bfloat16, _SPREAD))
        return [*ways]

    def _propose_with_torch(self, kind: torch.dtype, spread: int, queries: Tensor) -> _Proposal:
        """Propose all rows above a floor that is estimated from a sample of the bank."""
        low, error = _lowered(queries.float(), kind)
        table = _Table(_table_width(len(self.bank), self._wanted, spread), self._floors(low, kind, spread))
        worst, step = 0.0, min(_BLOCK, len(queries))
        for tile in spans(len(self.bank), max(step, self.bank.width), _BUDGET, queries.device):
            rows, lost = _lowered(self.bank.approximate(tile), kind)
            worst = max(worst, lost.max().item())
            for start in range(0, len(queries), step):
                table.add(start, tile.start, low[start : start + step], rows)
        rounding = 0.0 if kind == torch.float32 else 0.51 * torch.finfo(kind).eps
        floor = table.floor.float()
        return _Proposal(table.rows, table.values, floor, error + worst + _float32_error(self.bank.width), rounding)

    def _floors(self, queries: Tensor, kind: torch.dtype, spread: int) -> Tensor:
        """An estimate [Q] of the value of rank about 2 k in the bank, in the type of the values."""
        count, order = _sample(len(self.bank), self._wanted, spread)
        places = (torch.arange(count, dtype=torch.float64) * ((5**0.5 - 1) / 2) % 1 * len(self.bank)).long()
        sample, _ = _lowered(self.bank.pick(places.to(queries.device)).float(), kind)
        return torch.cat([(some @ sample.T).topk(order).values[:, -1] for some in queries.split(_BLOCK)])

    def _propose_with_faiss(self, queries: Tensor) -> _Proposal:
        """Propose the k + _SLACK best in float32."""
        count = self._wanted + _SLACK
        low = queries.float()
        best, rows = low.new_empty(len(low), 0), low.new_empty(len(low), 0, dtype=torch.int64)
        for tile in spans(len(self.bank), self.bank.width, 8 * _BUDGET, queries.device):
            values, found = _faiss_search(self.bank.approximate(tile), low, min(count, tile.stop - tile.start))
            best, order = torch.cat([best, values], 1).topk(min(count, tile.stop))
            rows = torch.cat([rows, found + tile.start], 1).gather(1, order)
        rows, order = rows.sort()
        floor = torch.nextafter(best[:, -1], torch.tensor(math.inf))  # rows of the same value may be left out
        error = torch.full_like(queries[:, 0], _float32_error(self.bank.width) + 2 * _SINGLE)
        return _Proposal(rows, best.gather(1, order), floor, error, 0.0)

    def _narrow(self, proposal: _Proposal, block: slice) -> tuple[Tensor, Tensor]:
        """Return which queries are decided, and their rows that may be among the k best, [decided, m] and padded by -1.

        k candidates have values from `kth` on, so similarities from kth - error on. A row that reaches that too has a
        value of at least kth - 2 error. If the floor is not above it, that row is among the candidates.
        """
        values, rows = proposal.values[block], proposal.rows[block]
        kth = values.topk(self._wanted).values[:, -1].double()
        cut = kth - proposal.rounding * kth.abs() - 2 * proposal.error[block]
        cut -= proposal.rounding * cut.abs()
        decided = kth.isfinite() & (proposal.floor[block] <= cut)
        keep = values[decided] >= cut[decided, None]
        places = keep.cumsum(1) - 1
        width = int(places[:, -1].max()) + 1 if len(keep) else 0
        candidates = rows.new_full((len(keep), width + 1), -1)  # the last column takes what is not kept
        candidates.scatter_(1, torch.where(keep, places, width), rows[decided])
        return decided, candidates[:, :width]

    def _compare(self, queries: Tensor, own: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Return the k best of each query's candidates.

        Quick float64 similarities depend on shapes and device in their last bits, the exact ones of `dots` do not but
        take three times as long. Rounded to GRID both are the same, except close to where rounding turns from down to
        up: only there, and only for rows that may be among the k best, the exact ones are computed.
        """
        similarities = self._quick(queries, candidates)
        error = _float64_error(queries.shape[1]) if self.bank.moderate else math.inf
        kth = similarities.topk(self._wanted).values[:, -1:]
        possible = similarities >= kth - (2 * error + 2 * GRID)
        steps = similarities.div_(GRID)
        rounded = steps.round()
        doubtful = possible & (candidates >= 0) & ((steps - rounded).abs() >= 0.5 - error / GRID)
        similarities = rounded.mul_(GRID).masked_fill_(~possible, -math.inf)
        pairs = doubtful.nonzero()
        for some in spans(len(pairs), queries.shape[1], _CACHED, queries.device):
            query, place = pairs[some].unbind(1)
            left, right = queries[query, None], self.bank.pick(candidates[query, place])[:, None]
            similarities[query, place] = rounded_dots(split(left), split(right))[:, 0, 0]
        return _best(similarities, candidates, own, self.k)

    def _quick(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Similarities [Q, m] in float64 with the candidates, -inf where there is none."""
        similarities, counts = queries.new_zeros(candidates.shape), (candidates >= 0).sum(1)
        if not self.bank.moderate:
            return similarities.masked_fill_(candidates < 0, -math.inf)  # all are doubtful then
        D, rows = queries.shape[1], candidates.clamp(min=0)
        # Memory is used again, as fresh memory costs as much as the arithmetic.
        memory = queries.new_empty(max(_budget(_CACHED, queries.device), candidates.shape[1] * D))
        for some in spans(len(queries), candidates.shape[1] * D, _CACHED, queries.device):
            few = rows[some, : int(counts[some].max())]
            raw = memory[: few.numel() * D].view(*few.shape, D)
            raw.view(-1, D).copy_(self.bank.raw(few.flatten()))
            similarities[some, : few.shape[1]] = (raw @ queries[some, :, None])[:, :, 0]
        return similarities.mul_(self.bank.scales[rows]).masked_fill_(candidates < 0, -math.inf)

    def _search_all(self, queries: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return the k best of all rows in float64."""
        best, rows = queries.new_empty(len(queries), self.k), own.new_empty(len(queries), self.k)
        for some in spans(len(queries), max(_BLOCK + self.k, self.bank.width), _BUDGET, queries.device):
            top, places, left = best[some, :0], rows[some, :0], split(queries[some])
            for tile in spans(len(self.bank), max(some.stop - some.start, self.bank.width), _BUDGET, queries.device):
                similarities = rounded_dots(left, split(self.bank[tile]))
                found = torch.arange(tile.start, tile.stop, device=own.device).expand(similarities.shape)
                top, places = _best(torch.cat([top, similarities], 1), torch.cat([places, found], 1), own[some], self.k)
            best[some], rows[some] = top, places
        return best, rows


class _Table:
    """Collects the rows above every query's floor, in the order of the bank."""

    def __init__(self, width: int, floor: Tensor) -> None:
        self._all_rows = torch.full((len(floor), width + 1), -1, device=floor.device)  # the last takes what is too much
        self._all_values = torch.full((len(floor), width + 1), -math.inf, device=floor.device)
        self.rows, self.values = self._all_rows[:, :width], self._all_values[:, :width]
        self.floor = floor
        self._counts = torch.zeros(len(floor), dtype=torch.int64, device=floor.device)
        self._products = floor.new_empty(0)
        self._mask = torch.empty(0, dtype=torch.bool, device=floor.device)

    def add(self, first: int, start: int, queries: Tensor, rows: Tensor) -> None:
        """Add what is above the floor among the queries from `first` on and the rows from `start` on."""
        some = slice(first, first + len(queries))
        found, values = self._found(queries, rows, self.floor[some])
        query = found.div(len(rows), rounding_mode="floor")
        counts = torch.bincount(query, minlength=len(queries))
        places = torch.arange(len(found), device=found.device)
        places += (self._counts[some] - counts.cumsum(0) + counts).index_select(0, query)
        self._counts[some] += counts
        width = self.rows.shape[1]
        self.floor[some].masked_fill_(self._counts[some] > width, math.inf)  # no more of this query
        slots = places.clamp_(max=width).add_((query + first) * (width + 1))
        self._all_rows.view(-1)[slots] = found - query * len(rows) + start
        self._all_values.view(-1)[slots] = values

    def _found(self, queries: Tensor, rows: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
        """Where products reach the floor, numbered row by row, and these products in float32.

        NumPy compares and counts several times faster than torch. It knows no bfloat16; but read as integers, such
        numbers compare alike with any above 0. Memory is used again, as fresh memory costs as much as the comparison.
        """
        shape, count = (len(queries), len(rows)), len(queries) * len(rows)
        if len(self._mask) < count:
            self._products, self._mask = floor.new_empty(count), self._mask.new_empty(count)
        values, mask = self._products[:count].view(shape), self._mask[:count].view(shape)
        torch.mm(queries, rows.T, out=values)
        if values.device.type != "cpu" or (values.dtype == torch.bfloat16 and not bool((floor > 0).all())):
            found = torch.ge(values, floor[:, None], out=mask).view(-1).nonzero()[:, 0]
        else:
            kind = torch.int16 if values.dtype == torch.bfloat16 else values.dtype
            np.greater_equal(values.view(kind).numpy(), floor[:, None].view(kind).numpy(), out=mask.numpy())
            found = torch.from_numpy(np.flatnonzero(mask.numpy()))
        return found, values.view(-1).index_select(0, found).float()


def _sample(N: int, wanted: int, spread: int) -> tuple[int, int]:
    """How many bank rows to draw for a floor, and which rank among them lets about 2 k rows of the bank through.

    The rank that 2 k rows have in the sample has a standard deviation of its root; `spread` of them are added.
    """
    count = min(_SAMPLE, N)
    share = 2 * wanted * count / N
    return count, min(count, math.ceil(share + spread * (math.sqrt(share) + 1)))


def _table_width(N: int, wanted: int, spread: int = 2 * _SPREAD) -> int:
    """Columns for a query's candidates, twice as many as are expected; N or more where a table would not pay."""
    count, order = _sample(N, wanted, spread)
    return 2 * math.ceil(order * N / count) + _SLACK


def _round(N: int, D: int, wanted: int) -> int:
    return max(1, CANDIDATES // max(D, min(N, _table_width(N, wanted))))


def working_bytes(N: int, D: int, Q: int, k: int) -> int:
    """About the most bytes that a search of Q queries among N rows holds beyond these, the norms and the answer."""
    width = min(N, _table_width(N, k))
    together = min(Q, _round(N, D, k))
    table = together * (width * 12 + D * 16 + k * 16)
    return table + 8 * max(_BUDGET, D) * 12 + 8 * D * min(N, _SAMPLE)


def _lowered(single: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return rows of about unit length in a lower precision and a bound [n] float64 on the length of what each lost.

    By Cauchy-Schwarz that length bounds what any similarity loses.
    """
    low = single.to(kind)
    if kind == torch.float32:
        return low, torch.full_like(single[:, 0], _SINGLE, dtype=torch.float64)
    return low, torch.linalg.vector_norm(single.sub_(low), dim=1).double().mul_(1.01).add_(_SINGLE)


def _float32_error(D: int) -> float:
    """Return a bound on the error of a dot product of D terms, in float32, of rows of about unit length.

    Let u = 2^-24. In any order of summing, with or without fused multiply-adds, D products are off by at most
    D u / (1 - D u) times both norms (Higham, Accuracy and Stability of Numerical Algorithms, 3.1). What
    the rows lost is counted apart. The added u and the factor 1.02 cover what is far smaller: norms off 1 by what
    bfloat16 rounds (below 2^-8 each), underflow (D 2^-120) and the rounding of the similarities in float64 (2^-51 D).
    """
    u = 2.0**-24
    return 1.02 * (D / (1 - D * u) + 1) * u


def dots(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
    """Return the dot products [..., m, n] of split unit rows, left [..., m, D] and right [..., n, D], in float64.

    Matrix kernels add in an order that depends on shapes and device, so rounding could make equal rows differ. Here no
    sum rounds. Every coordinate is split into a coarse part, a multiple of 2^-26 up to 1, and a fine one, a multiple of
    2^-s up to 2^-27. By Cauchy-Schwarz, partial sums of coarse x coarse stay below 2 in steps of 2^-52, and those of
    coarse x fine below 2^-26 sqrt(D) in steps of 2^-(26 + s). With 2^s <= 2^52 / sqrt(D) none needs more than the 53
    bits of float64. What is left out, finer than 2^-s or fine x fine, moves a similarity by less than 2^-51 D, in
    practice by some 1e-14.
    """
    (a, b), (c, d) = left, right
    return a @ c.mT + (a @ d.mT + b @ c.mT)


def rounded_dots(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
    """Return `dots` rounded to GRID."""
    return dots(left, right).div_(GRID).round_().mul_(GRID)


def split(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Split unit rows [..., D] in float64 into the coarse and fine parts of `dots`; the fine ones take their place."""
    fine_step = 52 - math.ceil(math.log2(rows.shape[-1]) / 2)
    coarse_round, fine_round = 1.5 * 2.0**26, 1.5 * 2.0 ** (52 - fine_step)
    coarse = (rows + coarse_round).sub_(coarse_round)  # what is added leaves no room for finer bits
    return coarse, rows.sub_(coarse).add_(fine_round).sub_(fine_round)


def _float64_error(D: int) -> float:
    """Return a bound on the difference of quick similarities in float64 from those of `dots`.

    As in `_float32_error` with u = 2^-53: D u from summing and 8 u from scaling before or after it; and 2^-51 D from
    what `dots` leaves out.
    """
    return 1.01 * (5 * D + 8) * 2.0**-53


def _best(similarities: Tensor, rows: Tensor, own: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best of each line in order. Lines list equals by index, and a stable sort keeps them so."""
    ranked, order = similarities.masked_fill(rows == own[:, None], -math.inf).sort(dim=1, descending=True, stable=True)
    return ranked[:, :k].contiguous(), rows.gather(1, order[:, :k])


def spans(lines: int, elements: int, budget: int, device: torch.device) -> Iterator[slice]:
    """Divide lines of so many elements each into slices of at least one line, if possible within the budget."""
    step = max(1, _budget(budget, device) // max(1, elements))
    return (slice(start, min(start + step, lines)) for start in range(0, lines, step))


def _budget(elements: int, device: torch.device) -> int:
    return elements * _ON_GPU if device.type == "cuda" else elements


@functools.cache
def bfloat16_pays(device: torch.device, width: int) -> bool:
    """Whether this processor multiplies matrices of bfloat16 several times faster than of float32, by trying it."""
    if device.type != "cpu":
        return False  # a GPU spends most of its time on other steps
    seconds = {}
    for kind in (torch.bfloat16, torch.float32):
        left, right = torch.ones(512, width, dtype=kind), torch.ones(2048, width, dtype=kind)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            left @ right.T
            times.append(time.perf_counter() - start)
        seconds[kind] = min(times)
    return seconds[torch.bfloat16] < seconds[torch.float32] / 2


def import_faiss() -> Any:
    """The module faiss; ImportError where it is not installed."""
    with warnings.catch_warnings():
        # SWIG, which wraps FAISS, offends Python 3.12 and newer until it is regenerated; no user can mend that.
        warnings.filterwarnings("ignore", message="builtin type swig", category=DeprecationWarning)
        import faiss
    return faiss


def faiss_gpus() -> int:
    """The GPUs that FAISS can use."""
    return int(getattr(import_faiss(), "get_num_gpus", int)())


def _faiss_search(tile: Tensor, queries: Tensor, count: int) -> tuple[Tensor, Tensor]:
    faiss = import_faiss()
    if faiss_gpus():
        found = faiss.knn_gpu(_gpu_memory(), queries.numpy(), tile.numpy(), count, metric=faiss.METRIC_INNER_PRODUCT)
    else:
        found = faiss.knn(queries.numpy(), tile.numpy(), count, metric=faiss.METRIC_INNER_PRODUCT)
    return torch.from_numpy(found[0]), torch.from_numpy(found[1])


@functools.cache
def _gpu_memory() -> Any:
    return import_faiss().StandardGpuResources()
