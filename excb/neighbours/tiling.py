"""Sizes of the search: tiles that fit the caches, tables of candidates, and their memory.

Letters: N bank rows, Q queries, D feature width, k neighbours.
"""

import math
from collections.abc import Iterator

import torch

CANDIDATES = 2**24  # most candidates in the table of a round of queries: 192 MiB
BLOCK = 512  # queries that meet a tile at once
BUDGET = 2**21  # most elements of a tile of similarities, and rows x D of a tile of the bank: what caches hold
CACHED = 2**17  # the same where many elementwise steps follow
SAMPLED = 1 / 16  # share of the bank's rows from which a query's floor is estimated: more cost more than they save
SAMPLE, MOST_SAMPLED = 2048, 16384  # rows of a sample, at least and at most
SPREAD = 4  # standard deviations by which a floor is lower than the estimate; doubled for the last attempt
SLACK = 32  # candidates of FAISS beyond k
MERGED = 4096  # queries whose neighbours the processes exchange at once
FEW = 16  # queries whose similarities with all rows are kept at once, if they are no more than CANDIDATES
WORTH = 2**27  # similarities from which bfloat16 is tried: fewer are fast anyway
ON_GPU = 32  # factor by which all tiles are larger on a GPU


def spans(lines: int, elements: int, budget: int, device: torch.device) -> Iterator[slice]:
    """Divide lines of `elements` elements each into slices of at least one line, if possible within the budget."""
    step = max(1, budget_on(budget, device) // max(1, elements))
    return (slice(start, min(start + step, lines)) for start in range(0, lines, step))


def budget_on(elements: int, device: torch.device) -> int:
    """A budget of elements, enlarged on a GPU."""
    return elements * ON_GPU if device.type == "cuda" else elements


def sample_size(N: int, wanted: int, spread: int) -> tuple[int, int]:
    """The number of bank rows to draw for a floor, and the rank among them that about 2 k rows of the bank pass.

    The rank of 2 k rows in the sample has its square root as standard deviation. `spread` of these are added.
    """
    count = min(N, max(SAMPLE, min(int(SAMPLED * N), MOST_SAMPLED)))
    share = 2 * wanted * count / N
    return count, min(count, math.ceil(share + spread * (math.sqrt(share) + 1)))


def table_width(N: int, wanted: int, spread: int | None = None) -> int:
    """Columns for a query's candidates, twice as many as are expected; N or more where a table would not pay."""
    count, order = sample_size(N, wanted, 2 * SPREAD if spread is None else spread)
    return 2 * math.ceil(order * N / count) + SLACK


def few_at_once(N: int, Q: int) -> bool:
    """Whether the queries are so few that their similarities with all rows are kept at once."""
    return Q <= FEW and Q * N <= CANDIDATES


def queries_at_once(N: int, D: int, wanted: int) -> int:
    """Number of queries to search together, so that their candidates fit the table."""
    return max(1, CANDIDATES // max(D, min(N, table_width(N, wanted))))


def working_bytes(N: int, D: int, Q: int, k: int) -> int:
    """Upper estimate of a search's bytes besides the N rows, their norms, the Q queries and the answer."""
    few = 4 * max(N, min(N * Q, CANDIDATES))
    width = min(N, table_width(N, k))
    together = min(Q, queries_at_once(N, D, k))
    table = together * (width * 12 + D * 16 + k * 16)
    return table + 8 * max(BUDGET, D) * 12 + 8 * D * sample_size(N, k, SPREAD)[0] + few
