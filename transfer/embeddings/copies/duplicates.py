"""Near-duplicates: groups of images around one that all are alike, found by comparing every pair, tile by tile."""

import heapq
from collections.abc import Callable, Iterable

import numpy as np
import torch

from excb.errors import UserError, require
from excb.exact import exact_products
from excb.neighbours.unit_rows import Rows

TILE = 2048  # rows on each side of a tile of pairs
SLACK = 1e-5  # by which float32 may be wrong about a cosine of unit rows
EQUAL = 1e-9  # cosines this close to the threshold reach it: those of identical rows are 1 up to rounding
MOST_PAIRS = 20_000_000


def star_groups(
    rows: Rows,
    cosine: float,
    progress: Callable[[int], None] = lambda _done: None,
    *,
    also: Iterable[tuple[int, int]] = (),
) -> list[list[int]]:
    """Groups of rows that have at least this cosine with one of them, which is the first; the largest group first.

    The row with the most such neighbours is the centre of the first group, of those that are left the next one's, and
    so on. Groups are no chains: whatever is in one is near its centre, and no row is in two.

    Args:
        rows: [N, D].
        cosine: above -1, at most 1.
        progress: called with numbers of rows, N in all.
        also: pairs of rows that are alike whatever their cosine, the smaller number first.

    Raises:
        UserError: the cosine is out of range, or so low that there are more than `MOST_PAIRS` pairs.
    """
    require(-1 < cosine <= 1, f"near-duplicates have a cosine above -1 and at most 1, such as 0.95, not {cosine:g}")
    given = np.array(list(also), np.int64).reshape(-1, 2).T
    N, links, pairs = len(rows), [given], 0
    with exact_products(torch.device("cpu")):
        for start in range(0, N, TILE):
            left = unit_rows(rows, start, min(start + TILE, N))
            for other in range(start, N, TILE):
                right = left if other == start else unit_rows(rows, other, min(other + TILE, N))
                near = _pairs(left, right, cosine, same=other == start) + np.array([[start], [other]])
                pairs += near.shape[1]
                if pairs > MOST_PAIRS:
                    raise UserError(f"more than {MOST_PAIRS:,} pairs reach a cosine of {cosine:g}: choose a higher one")
                links.append(near)
            progress(len(left))
    first, second = np.concatenate(links, axis=1)
    if given.size:  # some of these pairs were found again
        first, second = np.divmod(np.unique(first * N + second), N)
    return sorted(stars(first, second, N), key=lambda group: (-len(group), min(group)))


def stars(first: np.ndarray, second: np.ndarray, nodes: int) -> list[list[int]]:
    """Groups of nodes of a graph, each the node with the most neighbours that are in no group yet, and these.

    Args:
        first: one end of every edge, int64 [E], each edge once.
        second: the other.
        nodes: how many; of equal ones the first is taken.
    """
    ends = np.concatenate([first, second])
    others = np.concatenate([second, first])[np.argsort(ends, kind="stable")]
    left = np.bincount(ends, minlength=nodes)
    starts = np.concatenate([[0], np.cumsum(left)])

    def neighbours(node: int) -> np.ndarray:
        return others[starts[node] : starts[node + 1]]

    waiting = [(-int(count), node) for node, count in enumerate(left) if count]
    heapq.heapify(waiting)
    free, found = np.ones(nodes, bool), list[list[int]]()
    while waiting:
        count, node = heapq.heappop(waiting)
        if not free[node] or not left[node]:
            continue
        if -count != left[node]:  # some of its neighbours were taken since
            heapq.heappush(waiting, (-int(left[node]), node))
            continue
        around = neighbours(node)
        group = [node, *around[free[around]].tolist()]
        free[group] = False
        for member in group:
            left[neighbours(member)] -= 1
        found.append(group)
    return found


def unit_rows(rows: Rows, start: int, stop: int) -> torch.Tensor:
    """Unit rows in float64; a zero row stays zero."""
    return torch.nn.functional.normalize(rows.rows(start, stop).double(), dim=1)


def _pairs(left: torch.Tensor, right: torch.Tensor, cosine: float, *, same: bool) -> np.ndarray:
    """Pairs [2, n] of places in two tiles that reach the cosine, each once."""
    near = left.float() @ right.float().T >= cosine - SLACK
    if same:
        near = near.triu(1)
    first, second = near.nonzero(as_tuple=True)
    kept = [
        (left[a] * right[b]).sum(1) >= cosine - EQUAL
        for a, b in zip(first.split(TILE), second.split(TILE), strict=True)
    ]
    sure = torch.cat([torch.empty(0, dtype=torch.bool), *kept])
    return torch.stack([first[sure], second[sure]]).numpy()
