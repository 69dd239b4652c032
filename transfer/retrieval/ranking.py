"""Exact rankings of a whole gallery by cosine similarity.

Letters: Q queries, N gallery images, D feature width, R relevant images of a query: those of its class.
"""

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import torch
from torch import Tensor

from excb.neighbours.precision import rounded_dots, split
from excb.neighbours.tiling import spans
from excb.neighbours.unit_rows import UnitRows

from .effects import GalleryEffects
from .halves import HalfScores

_BLOCK = 2**23  # most similarities of a block of queries: 64 MiB, and three times as much to sort them
_TILE = 2**21  # most elements of a tile of the gallery, and of its similarities


def relevant_ranks(
    gallery: Tensor,
    queries: Tensor,
    labels: np.ndarray,
    targets: np.ndarray,
    own: Sequence[int] | None = None,
    *,
    device: torch.device,
    effects: GalleryEffects | None = None,
    halves: HalfScores | None = None,
    first: int = 0,
    progress: Callable[[int], None] = lambda _queries: None,
) -> list[np.ndarray]:
    """Where the images of each query's class stand when the gallery is ranked by similarity to it.

    Similarities are those of float64, rounded to a multiple of 2^-36, and equals are ranked by their index, so that
    the ranking depends neither on the device nor on how queries are divided. Memory is bounded by a block of queries.

    Args:
        gallery: [N, D] features, which need not be normalised.
        queries: [Q, D] features.
        labels: [N] classes of the gallery.
        targets: [Q] classes of the queries.
        own: [Q] rows of the gallery that are the queries themselves, and are left out of their rankings.
        device: where to compute.
        effects: counts what each gallery image does to the scores.
        halves: scores queries on halves.
        first: number of the first of the queries, for `effects` and `halves`.
        progress: called with the number of queries that are done.

    Returns:
        For each query the ranks of its R relevant images, [R] int64, ascending from 1.
    """
    bank, asked = UnitRows(gallery, "gallery", device), UnitRows(queries, "query", device)
    classes = torch.from_numpy(labels).to(device)
    ranks: list[np.ndarray] = []
    for block in spans(len(queries), len(gallery), _BLOCK, device):
        similarities = _similarities(asked[block], bank, device)
        if own is not None:
            similarities[range(len(similarities)), torch.tensor(own[block], device=device)] = -torch.inf  # comes last
        order = similarities.sort(dim=1, descending=True, stable=True).indices
        relevant = classes[order] == torch.from_numpy(targets[block]).to(device)[:, None]
        if own is not None:
            relevant[:, -1] = False
        ranks += [row.nonzero()[:, 0].cpu().numpy() + 1 for row in relevant]
        if effects is not None:
            for query, images, row in zip(count(first + block.start), order.cpu().numpy(), relevant.cpu().numpy()):
                effects.add(query, images, row)
        if halves is not None:
            wanted = halves.nearest(slice(first + block.start, first + block.stop))
            near, there = (each[:, :wanted].cpu().numpy() for each in (order, relevant))
            halves.add(first + block.start, near, there)
        progress(len(similarities))
    return ranks


def _similarities(queries: Tensor, bank: UnitRows, device: torch.device) -> Tensor:
    """Cosine similarities [q, N] of unit queries [q, D]."""
    similarities, left = queries.new_empty(len(queries), len(bank)), split(queries)
    for tile in spans(len(bank), max(len(queries), bank.width), _TILE, device):
        similarities[:, tile] = rounded_dots(left, split(bank[tile]))
    return similarities
