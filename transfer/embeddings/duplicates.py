"""Near-duplicates: groups of images linked by a high cosine, found by comparing every pair, tile by tile."""

from collections.abc import Callable

import numpy as np
import torch

from excb.errors import UserError, require
from excb.exact import exact_products
from excb.neighbours.unit_rows import Rows

TILE = 2048  # rows on each side of a tile of pairs
SLACK = 1e-5  # by which float32 may be wrong about a cosine of unit rows
EQUAL = 1e-9  # cosines this close to the threshold reach it: those of identical rows are 1 up to rounding
MOST_PAIRS = 20_000_000


def groups(rows: Rows, cosine: float, progress: Callable[[int], None] = lambda _done: None) -> list[list[int]]:
    """Groups of rows that are linked by pairs of at least this cosine, the largest first, rows ascending.

    Args:
        rows: [N, D].
        cosine: above -1, at most 1.
        progress: called with numbers of rows, N in all.

    Raises:
        UserError: the cosine is out of range, or so low that there are more than `MOST_PAIRS` pairs.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    require(-1 < cosine <= 1, f"near-duplicates have a cosine above -1 and at most 1, such as 0.95, not {cosine:g}")
    N, links, pairs = len(rows), list[np.ndarray](), 0
    with exact_products(torch.device("cpu")):
        for start in range(0, N, TILE):
            left = _unit(rows, start, min(start + TILE, N))
            for other in range(start, N, TILE):
                right = left if other == start else _unit(rows, other, min(other + TILE, N))
                near = _pairs(left, right, cosine, same=other == start) + np.array([[start], [other]])
                pairs += near.shape[1]
                if pairs > MOST_PAIRS:
                    raise UserError(f"more than {MOST_PAIRS:,} pairs reach a cosine of {cosine:g}: choose a higher one")
                links.append(near)
            progress(len(left))
    first, second = np.concatenate([np.empty((2, 0), np.int64), *links], axis=1)
    graph = coo_array((np.ones(len(first), np.int8), (first, second)), shape=(N, N))
    _, labels = connected_components(graph, directed=False)
    order = np.argsort(labels, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    return sorted((part.tolist() for part in parts if len(part) > 1), key=lambda part: (-len(part), part[0]))


def _unit(rows: Rows, start: int, stop: int) -> torch.Tensor:
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
