"""Find exact cosine nearest neighbours with FAISS or torch, and let them vote: DINO's weighted k-NN classifier.

Letters: N bank rows, Q queries, D feature width, k neighbours. How the search works stands in `excb.neighbours.search`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor

from excb.distributed.collectives import all_succeed, gather_rows, rank, world_size
from excb.errors import UserError
from excb.exact import exact_products
from excb.neighbours.search import Rows, Search, UnitRows, bfloat16_pays, faiss_gpus, import_faiss, working_bytes

_MERGED = 4096  # queries whose neighbours the processes exchange at once
_SCORES = 2**24  # most scores of a block of votes: 128 MiB


@dataclass(frozen=True)
class Neighbours:
    """The k nearest bank rows of every query, on the CPU, sorted by (-similarity, index).

    Attributes:
        indices: [Q, k] int64, rows of the bank.
        similarities: [Q, k] float64, cosine similarities, multiples of 2^-36.
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


def available_backend(
    backend: Literal["auto", "faiss", "torch"], device: torch.device | str = "cpu", width: int = 384
) -> Literal["faiss", "torch"]:
    """Return the back end to use: "auto" is FAISS where it can be imported, unless torch is quicker here.

    That is on a GPU that FAISS cannot use, and on processors that multiply bfloat16 matrices quickly.

    Args:
        backend: what was asked for.
        device: where torch would compute.
        width: D.

    Raises:
        UserError: FAISS is asked for but not installed, or there is no such back end.
    """
    if backend not in {"auto", "faiss", "torch"}:
        raise UserError(f"there is no k-NN back end {backend!r}: choose auto, faiss or torch")
    if backend == "torch" or (backend == "auto" and bfloat16_pays(torch.device(device), width)):
        return "torch"
    try:
        import_faiss()
        if backend == "auto" and torch.device(device).type == "cuda" and not faiss_gpus():
            return "torch"
    except ImportError as error:
        if backend == "auto":
            return "torch"
        raise UserError(
            "FAISS is not installed: run `pip install faiss-cpu` or `pip install 'excb[faiss-cpu]'` (never next to "
            "faiss-gpu, they share one module), or choose the back end torch, whose answers are the same"
        ) from error
    return "faiss"


@dataclass(frozen=True)
class Plan:
    """What a search will hold in memory, in bytes, in each process.

    Attributes:
        bank: its part of the bank, if it is in memory, and the lengths of all rows.
        queries: all queries.
        tiles: everything temporary.
        answer: the neighbours, and what merging those of several processes takes.
        text: all this in one line.
    """

    bank: int
    queries: int
    tiles: int
    answer: int
    text: str

    @property
    def total(self) -> int:
        """All of it."""
        return self.bank + self.queries + self.tiles + self.answer


def plan(N: int, D: int, Q: int, k: int, *, processes: int = 1, streamed: bool = False) -> Plan:
    """Say what a search in float32 features will hold in memory, before anything is allocated.

    Args:
        N: bank rows.
        D: width.
        Q: queries.
        k: neighbours.
        processes: how many share the bank.
        streamed: the bank is read from a disk in tiles, and does not count.
    """
    part = -(-N // processes)
    bank = part * 16 + (0 if streamed else part * D * 4)
    queries = Q * (D * 4 + 16)
    tiles = working_bytes(part, D, Q, min(k, part))
    answer = Q * k * 16 + (0 if processes == 1 else Q * k * 16 + 3 * processes * min(Q, _MERGED) * k * 16)
    each = "" if processes == 1 else f" in each of {processes} processes"
    text = (
        f"k-NN: bank {N:,} x {D} {_size(bank)}{' read in tiles' if streamed else ''}, {Q:,} queries {_size(queries)}, "
        f"tiles {_size(tiles)}, {k} neighbours each {_size(answer)}; "
        f"in all {_size(bank + queries + tiles + answer)}{each}"
    )
    return Plan(bank, queries, tiles, answer, text)


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

    Similarities are those of float64, rounded to a multiple of 2^-36 (1.5e-11): so they are the same bits from every
    back end, device and number of processes. Equals are ranked by index. Rows that are positive multiples of one
    another are equal. A zero row has similarity 0 with everything.

    Args:
        bank: [N, D] features of any real type; they need not be normalised. A tensor may be memory-mapped; any object
            with `rows(start, stop)`, `width` and a length is read span by span.
        queries: [Q, D] features, likewise.
        k: Neighbours per query, 1 to N, or to N - 1 with `exclude_self`.
        backend: What proposes candidates; it does not change the answer. See `available_backend`.
        exclude_self: The queries are the bank's rows in order, and no row is its own neighbour.
        share: All processes call this with the same bank and queries; each searches one part of the bank, and all
            return the same answer as one process alone.
        device: Where the back end torch computes, tile by tile; by default where the bank lies. FAISS is given what it
            searches from the CPU, and torch computes there too instead of on MPS, which has no float64.
        progress: Called as queries are done with the number of them; with the sum Q.

    Raises:
        UserError: Shapes do not fit, k is out of range, a feature is NaN or infinite, or FAISS is missing.
    """
    _check_shapes(bank, queries, k, exclude_self=exclude_self)
    place = torch.device((bank.device if isinstance(bank, Tensor) else "cpu") if device is None else device)
    chosen = available_backend(backend, place, _shape(bank)[1])
    if chosen == "faiss" or place.type == "mps":
        place = torch.device("cpu")

    def search(part: slice) -> Neighbours:
        unit_queries = UnitRows(queries, "query", place)
        searched = Search(UnitRows(bank, "bank", place, part), min(k, part.stop - part.start), chosen, exclude_self)
        return _search(searched, unit_queries, part.start, progress)

    if not share or world_size() == 1:
        return search(slice(0, len(bank)))
    first, end = (len(bank) * number // world_size() for number in (rank(), rank() + 1))
    return _merged(all_succeed(lambda: search(slice(first, end))), k)


def _search(search: Search, queries: UnitRows, first: int, progress: Callable[[int], None] | None) -> Neighbours:
    """Search the part of a bank that begins with row `first`. Fewer rows than k: all; a row of similarity -inf: own."""
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


def _merged(found: Neighbours, k: int) -> Neighbours:
    """Return the k best of what all processes found in their parts of the bank, which follow one another."""
    Q, missing = len(found.indices), k - found.indices.shape[1]
    similarities = torch.nn.functional.pad(found.similarities, (0, missing), value=-math.inf)
    indices = torch.nn.functional.pad(found.indices, (0, missing), value=-1)
    for start in range(0, Q, _MERGED):
        block = slice(start, start + _MERGED)
        # Side by side, equals stand in the order of their indices, and a stable sort keeps them so.
        ranked, rows = (torch.cat(gather_rows(x[block]).chunk(world_size()), 1) for x in (similarities, indices))
        ranked, order = ranked.sort(dim=1, descending=True, stable=True)
        similarities[block], indices[block] = ranked[:, :k], rows.gather(1, order[:, :k])
    return Neighbours(indices, similarities)


@overload
def vote(
    neighbours: Neighbours, labels: Tensor, *, ks: Sequence[int], temperature: float, classes: int
) -> dict[int, Vote]: ...


@overload
def vote(
    neighbours: Neighbours, labels: Tensor, *, ks: Sequence[int], temperatures: Sequence[float], classes: int
) -> dict[tuple[int, float], Vote]: ...


def vote(
    neighbours: Neighbours,
    labels: Tensor,
    *,
    ks: Sequence[int],
    temperature: float | None = None,
    temperatures: Sequence[float] = (),
    classes: int,
) -> dict[int, Vote] | dict[tuple[int, float], Vote]:
    """Let the first k neighbours of every query vote for their class with weight exp(similarity / temperature).

    This is DINO's protocol (facebookresearch/dino, eval_knn.py): temperature 0.07; k of 10, 20, 100 and 200. Classes of
    equal score are ranked by index.

    Args:
        neighbours: At least max(ks) neighbours of each of Q queries.
        labels: [N] int64, the classes of the bank's rows.
        ks: How many neighbours vote; one pass serves all.
        temperature: What similarities are divided by, above 0.
        temperatures: Several of them instead; one pass serves all.
        classes: Number of classes; labels lie in 0 to classes - 1.

    Returns:
        The vote for every k of `ks`, in ascending order; with `temperatures`, for every (k, temperature).

    Raises:
        UserError: A k, a temperature, a label or the number of labels is out of range.
    """
    chosen = list(temperatures) if temperature is None else [temperature]
    _check_vote(neighbours, labels, ks, chosen, classes)
    labels, (Q, found) = labels.cpu(), neighbours.indices.shape
    answers = {
        (k, T): (torch.empty(Q, min(5, classes), dtype=torch.int64), torch.empty(Q, dtype=torch.bool))
        for k in sorted(set(ks))
        for T in chosen
    }
    step = max(1, _SCORES // max(classes, found))
    for start in range(0, Q, step):
        rows = slice(start, start + step)
        voted, similarities = labels[neighbours.indices[rows]], neighbours.similarities[rows]
        for T in chosen:
            # Relative to the nearest neighbour: the ranks are the same, and exp overflows at no temperature.
            weights = ((similarities - similarities[:, :1]) / T).exp()
            scores = weights.new_zeros(len(weights), classes)
            counted = 0
            for k in sorted(set(ks)):
                scores.scatter_add_(1, voted[:, counted:k], weights[:, counted:k])
                top5, tied = answers[k, T]
                top5[rows], tied[rows] = _best_classes(scores)
                counted = k
    votes = {key: Vote(top5[:, 0], top5, tied) for key, (top5, tied) in answers.items()}
    return votes if temperature is None else {k: vote for (k, _), vote in votes.items()}


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


def _best_classes(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the five best classes of each line in order, and whether the two best are tied."""
    highest = scores.topk(min(2, scores.shape[1])).values
    tied = (highest[:, 0] - highest[:, -1] < 1e-6 * highest[:, 0]) & (scores.shape[1] > 1)
    rest, classes = scores.clone(), []
    for _ in range(min(5, scores.shape[1])):
        classes.append(rest.argmax(1, keepdim=True))  # of equals the first, which topk does not promise
        rest.scatter_(1, classes[-1], -1.0)
    return torch.cat(classes, 1), tied


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _shape(features: Tensor | Rows) -> list[int]:
    return list(features.shape) if isinstance(features, Tensor) else [len(features), features.width]


def _check_shapes(bank: Tensor | Rows, queries: Tensor | Rows, k: int, *, exclude_self: bool) -> None:
    rows, asked = _shape(bank), _shape(queries)
    if len(rows) != 2 or len(asked) != 2 or rows[1] != asked[1] or 0 in rows + asked:
        raise UserError(
            f"bank {rows} and queries {asked} do not fit: give features [rows, width], "
            "of one width, with at least one row each"
        )
    if exclude_self and rows != asked:
        raise UserError(f"exclude_self: {len(queries)} queries for {len(bank)} bank rows: pass the bank as the queries")
    if not 1 <= k <= len(bank) - exclude_self:
        raise UserError(f"k is {k}: choose 1 to {len(bank) - exclude_self}, the bank rows that can be neighbours")


def _check_vote(
    neighbours: Neighbours, labels: Tensor, ks: Sequence[int], temperatures: Sequence[float], classes: int
) -> None:
    found = neighbours.indices.shape[1]
    if not ks or min(ks) < 1 or max(ks) > found:
        raise UserError(f"k is {list(ks)}: every k must lie in 1 to {found}, the number of neighbours searched for")
    if not temperatures:
        raise UserError("there is no k-NN temperature: choose one or several, such as DINO's 0.07")
    for temperature in temperatures:
        if not 0 < temperature < math.inf:
            raise UserError(f"the k-NN temperature is {temperature}: choose a number above 0, such as DINO's 0.07")
    if len(labels) <= neighbours.indices.max():
        raise UserError(f"{len(labels)} labels do not reach every row of the bank: give one label per row")
    if labels.min() < 0 or labels.max() >= classes:
        raise UserError(f"a label lies outside 0 to {classes - 1}: number the {classes} classes from 0")
