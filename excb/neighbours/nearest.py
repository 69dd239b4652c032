"""The exact nearest rows by cosine similarity, searched by one process or by several that share the bank.

Letters: N bank rows, Q queries, D feature width, k neighbours. `excb.neighbours.search` describes how the search works.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from excb.console import plural
from excb.distributed.collectives import all_succeed, gather_rows, rank, world_size
from excb.errors import UserError
from excb.exact import exact_products
from excb.neighbours.backends import available_backend, faiss_is_there
from excb.neighbours.half_rows import MOST_QUERIES, HalfRows
from excb.neighbours.search import Search
from excb.neighbours.tiling import MERGED
from excb.neighbours.unit_rows import Rows, UnitRows


@dataclass(frozen=True)
class Neighbours:
    """The k nearest bank rows of every query, on the CPU, sorted by (-similarity, index)."""

    indices: Tensor  # [Q, k] int64, rows of the bank
    similarities: Tensor  # [Q, k] float64, cosine similarities, multiples of 2^-36


def nearest(
    bank: Tensor | Rows,
    queries: Tensor | Rows,
    k: int,
    *,
    backend: Literal["auto", "faiss", "torch"] = "auto",
    exclude_self: bool = False,
    share: bool = False,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Neighbours:
    """Return the k bank rows of highest cosine similarity to every query.

    Similarities are computed in float64 and rounded to multiples of 2^-36 (1.5e-11), so they are bit-exact on every
    backend, device and world size. Equal ones are ranked by index. Rows that are positive multiples of one another are
    equal. A zero row has similarity 0 with everything.

    Args:
        bank: [N, D] features of any real type, not necessarily normalised. A tensor may be memory-mapped. `Rows` are
            read span by span.
        queries: [Q, D] features, likewise.
        k: Neighbours per query, 1 to N, or to N - 1 with `exclude_self`.
        backend: Proposes candidates and does not change the answer. See `available_backend`.
        exclude_self: The queries are the bank's rows in order, and no row is its own neighbour.
        share: All ranks call this with the same bank and queries. Each searches one part of the bank, and all return
            the same answer as one process would.
        device: Where the backend torch computes, by default where the bank is. FAISS reads from the CPU, and torch
            computes there too instead of on MPS, which has no float64.
        progress: Called with the number of queries done, Q in all.

    Raises:
        UserError: Shapes differ, k is out of range, a feature is NaN or infinite, or FAISS is missing.
    """
    check_shapes(bank, queries, k, exclude_self=exclude_self)
    resolved, place = _where(bank, backend, device)

    def search(part: slice) -> Neighbours:
        unit_queries = UnitRows(queries, "query", place)
        searched = Search(UnitRows(bank, "bank", place, part), min(k, part.stop - part.start), resolved, exclude_self)
        return _search(searched, unit_queries, part.start, progress)

    if not share or world_size() == 1:
        return search(slice(0, len(bank)))
    first, end = (len(bank) * number // world_size() for number in (rank(), rank() + 1))
    return _merged(all_succeed(lambda: search(slice(first, end))), k)


class Index:
    """A bank that is searched again and again: its rows are checked and their norms computed once.

    The rows may lie in a mapped file, and 28 bytes of each are kept. On a CPU with FAISS the second search of at most
    four queries makes a copy in float16 for all later ones: 2 D bytes a row, read in half the time.

    Args:
        bank: as of `nearest`, and not changed later.
        backend: as of `nearest`.
        device: as of `nearest`.

    Raises:
        UserError: a feature is NaN or infinite, there is no row, or FAISS is missing.
    """

    def __init__(
        self,
        bank: Tensor | Rows,
        *,
        backend: Literal["auto", "faiss", "torch"] = "auto",
        device: torch.device | str | None = None,
    ) -> None:
        self._backend, place = _where(bank, backend, device)
        self._rows = UnitRows(bank, "bank", place)
        self._halves: HalfRows | None = None
        self._small_searches = 0
        self._copied = backend != "torch" and self._rows.device.type == "cpu" and faiss_is_there()

    def __len__(self) -> int:
        """N."""
        return len(self._rows)

    def nearest(self, queries: Tensor | Rows, k: int, *, progress: Callable[[int], None] | None = None) -> Neighbours:
        """The nearest rows of queries [Q, D], as `nearest` returns them.

        Raises:
            UserError: shapes differ, k is out of range, or a feature is NaN or infinite.
        """
        check_shapes(self._rows, queries, k, exclude_self=False)
        if self._copied and self._halves is None and len(queries) <= MOST_QUERIES:
            self._small_searches += 1
            if self._small_searches >= 2:  # more, where threads search at once
                self._halves = HalfRows(self._rows)
        search = Search(self._rows, k, self._backend, exclude_self=False, halves=self._halves)
        return _search(search, UnitRows(queries, "query", self._rows.device), 0, progress)


def _where(
    bank: Tensor | Rows, backend: Literal["auto", "faiss", "torch"], device: torch.device | str | None
) -> tuple[Literal["faiss", "torch"], torch.device]:
    """The backend and the device of a search."""
    place = torch.device((bank.device if isinstance(bank, Tensor) else "cpu") if device is None else device)
    resolved = available_backend(backend, place, _shape(bank)[-1])
    return resolved, torch.device("cpu") if resolved == "faiss" or place.type == "mps" else place


def _search(search: Search, queries: UnitRows, first: int, progress: Callable[[int], None] | None) -> Neighbours:
    """Search the part of a bank that begins with row `first`. All rows are returned if they are fewer than k."""
    indices = torch.empty(len(queries), search.k, dtype=torch.int64)
    similarities = torch.empty(len(queries), search.k, dtype=torch.float64)
    if not search.k:  # more processes than rows
        return Neighbours(indices, similarities)
    with exact_products(queries.device):
        for start in range(0, len(queries), search.round):
            block = slice(start, min(start + search.round, len(queries)))
            own = torch.arange(block.start, block.stop, device=queries.device) - first
            if not search.exclude_self:
                own.fill_(-1)
            similarities[block], indices[block] = search.run(queries[block], own, progress or (lambda _done: None))
    return Neighbours(indices.add_(first), similarities)


def _merged(part: Neighbours, k: int) -> Neighbours:
    """Merge what all processes found in their consecutive parts of the bank into the k best."""
    Q, missing = len(part.indices), k - part.indices.shape[1]
    similarities = torch.nn.functional.pad(part.similarities, (0, missing), value=-math.inf)
    indices = torch.nn.functional.pad(part.indices, (0, missing), value=-1)
    for start in range(0, Q, MERGED):
        block = slice(start, start + MERGED)
        # Side by side, equal similarities are in the order of their indices, and a stable sort keeps that order.
        ranked, rows = (torch.cat(gather_rows(x[block]).chunk(world_size()), 1) for x in (similarities, indices))
        ranked, order = ranked.sort(dim=1, descending=True, stable=True)
        similarities[block], indices[block] = ranked[:, :k], rows.gather(1, order[:, :k])
    return Neighbours(indices, similarities)


def _shape(features: Tensor | Rows | UnitRows) -> list[int]:
    return list(features.shape) if isinstance(features, Tensor) else [len(features), features.width]


def check_shapes(bank: Tensor | Rows | UnitRows, queries: Tensor | Rows, k: int, *, exclude_self: bool) -> None:
    """Raise UserError unless queries fit a bank, and k its rows."""
    rows, wanted = _shape(bank), _shape(queries)
    if len(rows) != 2 or len(wanted) != 2 or rows[1] != wanted[1] or 0 in rows + wanted:
        raise UserError(
            f"bank {rows} and queries {wanted} do not fit: give features [rows, width], of one width, with at least "
            "one row each"
        )
    if exclude_self and rows != wanted:
        raise UserError(
            f"exclude_self: {plural(len(queries), 'query', 'queries')} for {plural(len(bank), 'bank row')}: pass the "
            "bank as the queries"
        )
    if not 1 <= k <= len(bank) - exclude_self:
        raise UserError(f"k is {k}: choose 1 to {len(bank) - exclude_self}, the bank rows that can be neighbours")
