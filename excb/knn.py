"""Find exact cosine nearest neighbours with FAISS or torch, and let them vote: DINO's weighted k-NN classifier.

Letters: N bank rows, Q queries, D feature width, k neighbours.

A back end only proposes candidates, in float32. They are then compared in float64, and a query for which the error of
float32 may have hidden a better row is searched again in float64. So the answer depends neither on the back end nor on
the device, and beyond the inputs and the answer only a few tiles are in memory, never a Q x N matrix.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from excb.errors import UserError

_TILE = 8192  # most rows of a tile
_BUDGET = 2**24  # most elements of a temporary array: 128 MiB in float64
_CACHED = 2**20  # the same where many elementwise steps follow, several times faster on what caches hold
_SLACK = 32  # candidates beyond k: the more there are, the fewer queries need the search in float64


@dataclass(frozen=True)
class Neighbours:
    """The k nearest bank rows of every query, on the CPU, sorted by (-similarity, index).

    Attributes:
        indices: [Q, k] int64, rows of the bank.
        similarities: [Q, k] float64, cosine similarities.
    """

    indices: Tensor
    similarities: Tensor


@dataclass(frozen=True)
class Vote:
    """What the neighbours of every query voted for, on the CPU.

    Attributes:
        top1: [Q] int64, the class of highest score.
        top5: [Q, min(5, classes)] int64, the classes of highest score in order; classes without a vote score 0.
        tied: [Q] bool, whether the two highest scores differ by less than a millionth of the highest.
    """

    top1: Tensor
    top5: Tensor
    tied: Tensor


def available_backend(backend: Literal["auto", "faiss", "torch"]) -> Literal["faiss", "torch"]:
    """Return the back end to use: "auto" is FAISS where it can be imported, else torch.

    Raises:
        UserError: FAISS is asked for but not installed, or there is no such back end.
    """
    if backend not in {"auto", "faiss", "torch"}:
        raise UserError(f"there is no k-NN back end {backend!r}: choose auto, faiss or torch")
    if backend == "torch":
        return "torch"
    try:
        _import_faiss()
    except ImportError as error:
        if backend == "auto":
            return "torch"
        raise UserError(
            "FAISS is not installed: run `pip install faiss-cpu` or `pip install 'excb[faiss-cpu]'` (never next to "
            "faiss-gpu, they share one module), or choose the back end torch, whose answers are the same"
        ) from error
    return "faiss"


def nearest(
    bank: Tensor,
    queries: Tensor,
    k: int,
    *,
    backend: Literal["auto", "faiss", "torch"] = "auto",
    exclude_self: bool = False,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Neighbours:
    """Return the k bank rows of highest cosine similarity to every query, as float64 ranks them.

    Rows that are positive multiples of one another have equal similarities, and equals are ranked by index. A zero row
    has similarity 0 with everything.

    Args:
        bank: [N, D] features of any real type; they need not be normalised.
        queries: [Q, D] features.
        k: Neighbours per query, 1 to N, or to N - 1 with `exclude_self`.
        backend: What proposes candidates; it does not change the answer.
        exclude_self: The queries are the bank's rows in order, and no row is its own neighbour.
        device: Where the back end torch computes, tile by tile; by default where the bank lies. FAISS computes on the
            CPU, and so does torch instead of on MPS, which has no float64.
        progress: Called after every block of queries with the number of queries in it.

    Raises:
        UserError: Shapes do not fit, k is out of range, a feature is NaN or infinite, or FAISS is missing.
    """
    _check_shapes(bank, queries, k, exclude_self=exclude_self)
    chosen = available_backend(backend)
    place = torch.device(bank.device if device is None else device)
    if chosen == "faiss" or place.type == "mps":
        place = torch.device("cpu")
    search = _Search(_UnitRows.of(bank, "bank", place), k, chosen, exclude_self=exclude_self)
    unit_queries = _UnitRows.of(queries, "query", place)
    indices = torch.empty(len(queries), k, dtype=torch.int64)
    similarities = torch.empty(len(queries), k, dtype=torch.float64)
    with _ieee_float32(place):
        for block in _spans(len(queries), max(_TILE, queries.shape[1]), _BUDGET):
            similarities[block], indices[block] = search.run(unit_queries[block], block.start)
            if progress is not None:
                progress(block.stop - block.start)
    return Neighbours(indices, similarities)


def vote(
    neighbours: Neighbours, labels: Tensor, *, ks: Sequence[int], temperature: float, classes: int
) -> dict[int, Vote]:
    """Let the first k neighbours of every query vote for their class with weight exp(similarity / temperature).

    This is DINO's protocol (facebookresearch/dino, eval_knn.py): temperature 0.07; k of 10, 20, 100 and 200. Classes of
    equal score are ranked by index.

    Args:
        neighbours: At least max(ks) neighbours of each of Q queries.
        labels: [N] int64, the classes of the bank's rows.
        ks: How many neighbours vote; one pass serves all.
        temperature: What similarities are divided by, above 0.
        classes: Number of classes; labels lie in 0 to classes - 1.

    Returns:
        The vote for every k of `ks`, in ascending order.

    Raises:
        UserError: A k, the temperature, a label or the number of labels is out of range.
    """
    _check_vote(neighbours, labels, ks, temperature, classes)
    labels, (Q, found) = labels.cpu(), neighbours.indices.shape
    answers = {
        k: (torch.empty(Q, min(5, classes), dtype=torch.int64), torch.empty(Q, dtype=torch.bool))
        for k in sorted(set(ks))
    }
    for rows in _spans(Q, max(classes, found), _BUDGET):
        voted, similarities = labels[neighbours.indices[rows]], neighbours.similarities[rows]
        # Relative to the nearest neighbour: the ranks are the same, and exp overflows at no temperature.
        weights = ((similarities - similarities[:, :1]) / temperature).exp()
        scores = weights.new_zeros(len(weights), classes)
        counted = 0
        for k, (top5, tied) in answers.items():
            scores.scatter_add_(1, voted[:, counted:k], weights[:, counted:k])
            top5[rows], tied[rows] = _best_classes(scores)
            counted = k
    return {k: Vote(top5[:, 0], top5, tied) for k, (top5, tied) in answers.items()}


def accuracy(vote: Vote, targets: Tensor) -> tuple[float, float]:
    """Return top-1 and top-5 accuracy in percent.

    Args:
        vote: The vote on Q queries.
        targets: [Q] int64, their true classes.

    Raises:
        UserError: There is not one target per query.
    """
    if targets.shape != vote.top1.shape:
        raise UserError(f"{len(vote.top1)} queries, but targets of shape {list(targets.shape)}: give one per query")
    targets = targets.cpu()
    in_top5 = (vote.top5 == targets[:, None]).any(1)
    return 100 * (vote.top1 == targets).double().mean().item(), 100 * in_top5.double().mean().item()


@dataclass(frozen=True)
class _UnitRows:
    """The rows of a matrix, normalised in float64 when some are asked for; never all of them at once.

    Rows are divided by their largest magnitude first: no square overflows, and rows that are positive multiples of one
    another become the same bits. All steps are elementwise, so that these bits depend neither on where a row lies nor
    on the device.
    """

    raw: Tensor
    peaks: Tensor
    norms: Tensor

    @classmethod
    def of(cls, raw: Tensor, name: str, device: torch.device) -> Self:
        unit = cls(raw.detach(), *torch.ones(2, len(raw), 1, dtype=torch.float64, device=device))
        for rows in _spans(len(raw), raw.shape[1], _CACHED):
            values = unit.raw[rows].to(device).double()
            if not values.isfinite().all():
                raise UserError(f"a {name} feature is NaN or infinite: check the encoder and the images it was given")
            peak = values.abs().amax(1, keepdim=True)
            unit.peaks[rows] = torch.where(peak > 0, peak, 1.0)
            squares = (values / unit.peaks[rows]).square_()
            while (width := squares.shape[1]) > 1:  # Halving: sum() may add in an order of its own on every device.
                half = (width + 1) // 2
                squares[:, : width - half] += squares[:, half:]
                squares = squares[:, :half]
            unit.norms[rows] = squares.sqrt().clamp(min=1.0)  # at least 1 by the division above, except in zero rows
        return unit

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        picked = self.raw[rows if isinstance(rows, slice) else rows.to(self.raw.device)]
        return (picked.to(self.peaks.device) / self.peaks[rows]).div_(self.norms[rows])


@dataclass(frozen=True)
class _Search:
    """The search of one bank. Queries are unit rows [Q, D] in float64; `own` [Q] is the bank row each must not find."""

    bank: _UnitRows
    k: int
    backend: Literal["faiss", "torch"]
    exclude_self: bool

    def run(self, queries: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Return the similarities and rows, [Q, k] each, of the queries that begin with number `first`."""
        N, D = self.bank.raw.shape
        own = torch.arange(first, first + len(queries), device=queries.device)
        if not self.exclude_self:
            own.fill_(-1)
        count = self.k + _SLACK
        if count >= N or count * D > _BUDGET:
            return self._search_all(queries, own)
        candidates, floor = self._propose(queries.float(), count)
        similarities, rows = self._rank(queries, own, candidates)
        # No row outside the candidates is above `floor` in float32. If the k-th candidate is above it by more than the
        # error of float32, no such row can replace it. Otherwise (many nearly equal rows) all rows must be compared.
        doubtful = (similarities[:, -1] <= floor.double() + _float32_error(D)).nonzero()[:, 0]
        if len(doubtful):
            similarities[doubtful], rows[doubtful] = self._search_all(queries[doubtful], own[doubtful])
        return similarities, rows

    def _propose(self, queries: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` best rows in float32, [Q, count] by index, and the lowest of their similarities, [Q]."""
        propose = _propose_with_faiss if self.backend == "faiss" else _propose_with_torch
        best, rows = queries.new_empty(len(queries), 0), queries.new_empty(len(queries), 0, dtype=torch.int64)
        for tile in _tiles(self.bank.raw):
            similarities, found = propose(queries, self.bank[tile].float(), min(count, tile.stop - tile.start))
            best, order = torch.cat([best, similarities], 1).topk(min(count, tile.stop))
            rows = torch.cat([rows, found + tile.start], 1).gather(1, order)
        return rows.sort().values, best[:, -1]

    def _rank(self, queries: Tensor, own: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Return the k best of each query's candidates in float64."""
        best, rows = queries.new_empty(len(queries), self.k), own.new_empty(len(queries), self.k)
        for some in _spans(len(queries), candidates.shape[1] * queries.shape[1], _CACHED):
            similarities = _similarities(queries[some, None], self.bank[candidates[some]])[:, 0]
            best[some], rows[some] = _best(similarities, candidates[some], own[some], self.k)
        return best, rows

    def _search_all(self, queries: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return the k best of all rows in float64."""
        best, rows = queries.new_empty(len(queries), self.k), own.new_empty(len(queries), self.k)
        for some in _spans(len(queries), _TILE + self.k, _BUDGET):
            top, places = best[some, :0], rows[some, :0]
            for tile in _tiles(self.bank.raw):
                similarities = _similarities(queries[some], self.bank[tile])
                found = torch.arange(tile.start, tile.stop, device=own.device).expand(similarities.shape)
                top, places = _best(torch.cat([top, similarities], 1), torch.cat([places, found], 1), own[some], self.k)
            best[some], rows[some] = top, places
        return best, rows


def _similarities(left: Tensor, right: Tensor) -> Tensor:
    """Return the dot products [..., m, n] of unit rows, left [..., m, D] and right [..., n, D], in float64.

    Matrix kernels add in an order that depends on shapes and device, so rounding could make equal rows differ. Here no
    sum rounds. Every coordinate is split into a coarse part, a multiple of 2^-26 up to 1, and a fine one, a multiple of
    2^-s up to 2^-27. By Cauchy-Schwarz, partial sums of coarse x coarse stay below 2 in steps of 2^-52, those of the
    two coarse x fine below 2^-25 sqrt(D) in steps of 2^-(26 + s), and those of fine x fine below 2^-53 D in steps of
    2^-2s. With 2^s <= 2^52 / sqrt(D) none needs more than the 53 bits of float64. Dropping what is finer than 2^-s
    moves a similarity by less than 2^-51 D, in practice by some 1e-14.
    """
    s = 52 - math.ceil(math.log2(left.shape[-1]) / 2)
    (a, b), (c, d) = _split(left, s), _split(right, s)
    return a @ c.mT + ((a @ d.mT + b @ c.mT) + b @ d.mT)


def _split(rows: Tensor, s: int) -> tuple[Tensor, Tensor]:
    coarse = (rows * 2.0**26).round_().mul_(2.0**-26)
    return coarse, (rows - coarse).mul_(2.0**s).round_().mul_(2.0**-s)


def _float32_error(D: int) -> float:
    """Return a bound on the error of a dot product of unit rows that were rounded to float32 and multiplied in float32.

    Let u = 2^-24. In any order of summing, with or without fused multiply-adds, D products are off by at most
    D u / (1 - D u) times both norms, which are 1 (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
    Rounding the rows adds 2 u + u^2. The third u and the factor 1.01 cover what is far smaller: norms off 1 by 2^-48,
    underflow (D 2^-120) and the rounding of the similarities in float64 (2^-51 D).
    """
    u = 2.0**-24
    return 1.01 * (D / (1 - D * u) + 3) * u


def _propose_with_torch(queries: Tensor, tile: Tensor, count: int) -> tuple[Tensor, Tensor]:
    similarities, rows = (queries @ tile.T).topk(count)
    return similarities, rows


def _propose_with_faiss(queries: Tensor, tile: Tensor, count: int) -> tuple[Tensor, Tensor]:
    index = _import_faiss().IndexFlatIP(tile.shape[1])  # of a tile: an index of the bank would be a copy of the bank
    index.add(tile.numpy())
    similarities, rows = index.search(queries.numpy(), count)
    return torch.from_numpy(similarities), torch.from_numpy(rows)


def _best(similarities: Tensor, rows: Tensor, own: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best of each line in order. Lines list equals by index, and a stable sort keeps them so."""
    ranked, order = similarities.masked_fill(rows == own[:, None], -torch.inf).sort(dim=1, descending=True, stable=True)
    return ranked[:, :k].contiguous(), rows.gather(1, order[:, :k])


def _best_classes(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the five best classes of each line in order, and whether the two best are tied."""
    highest = scores.topk(min(2, scores.shape[1])).values
    tied = (highest[:, 0] - highest[:, -1] < 1e-6 * highest[:, 0]) & (scores.shape[1] > 1)
    rest, classes = scores.clone(), []
    for _ in range(min(5, scores.shape[1])):
        classes.append(rest.argmax(1, keepdim=True))  # of equals the first, which topk does not promise
        rest.scatter_(1, classes[-1], -1.0)
    return torch.cat(classes, 1), tied


def _tiles(matrix: Tensor) -> Iterator[slice]:
    return _spans(len(matrix), matrix.shape[1], _BUDGET)


def _spans(lines: int, elements: int, budget: int) -> Iterator[slice]:
    """Divide lines of so many elements each into slices of 1 to _TILE lines, if possible within the budget."""
    step = min(_TILE, max(1, budget // elements))
    return (slice(start, min(start + step, lines)) for start in range(0, lines, step))


@contextmanager
def _ieee_float32(device: torch.device) -> Iterator[None]:
    """Multiply float32 as float32, whatever the caller allows: the bound above knows no TF32, bfloat16 or autocast."""
    settings: list[Any] = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]  # type: ignore[attr-defined]
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for setting, precision in zip(settings, before, strict=True):
            setting.fp32_precision = precision


def _import_faiss() -> Any:
    with warnings.catch_warnings():
        # SWIG, which wraps FAISS, offends Python 3.12 and newer until it is regenerated; no user can mend that.
        warnings.filterwarnings("ignore", message="builtin type swig", category=DeprecationWarning)
        import faiss
    return faiss


def _check_shapes(bank: Tensor, queries: Tensor, k: int, *, exclude_self: bool) -> None:
    if bank.dim() != 2 or queries.dim() != 2 or bank.shape[1] != queries.shape[1] or not bank.numel() * len(queries):
        raise UserError(
            f"bank {list(bank.shape)} and queries {list(queries.shape)} do not fit: give features [rows, width], "
            "of one width, with at least one row each"
        )
    if exclude_self and bank.shape != queries.shape:
        raise UserError(f"exclude_self: {len(queries)} queries for {len(bank)} bank rows: pass the bank as the queries")
    if not 1 <= k <= len(bank) - exclude_self:
        raise UserError(f"k is {k}: choose 1 to {len(bank) - exclude_self}, the bank rows that can be neighbours")


def _check_vote(neighbours: Neighbours, labels: Tensor, ks: Sequence[int], temperature: float, classes: int) -> None:
    found = neighbours.indices.shape[1]
    if not ks or min(ks) < 1 or max(ks) > found:
        raise UserError(f"k is {list(ks)}: every k must lie in 1 to {found}, the number of neighbours searched for")
    if not 0 < temperature < math.inf:
        raise UserError(f"the k-NN temperature is {temperature}: choose a number above 0, such as DINO's 0.07")
    if len(labels) <= neighbours.indices.max():
        raise UserError(f"{len(labels)} labels do not reach every row of the bank: give one label per row")
    if labels.min() < 0 or labels.max() >= classes:
        raise UserError(f"a label lies outside 0 to {classes - 1}: number the {classes} classes from 0")
