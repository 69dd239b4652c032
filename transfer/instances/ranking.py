"""Where judged images stand in the exact ranking of a whole gallery, which is read in tiles and never sorted.

Letters: Q queries, N gallery images, D feature width, J judged images of a query.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from excb.console import plural
from excb.distributed.collectives import world_size
from excb.distributed.machine import available_memory
from excb.errors import require
from excb.neighbours.precision import GRID, rounded_dots, split
from excb.neighbours.tiling import spans
from excb.neighbours.unit_rows import Rows, UnitRows

_TOGETHER = 2**26  # most elements of a block of queries: half a gigabyte in float64
_TILE = 2**21  # most elements of a tile of the gallery, and of its similarities
_MOST = 2**25  # images in a gallery: their numbers must fit the keys


class StackedRows:
    """Several sets of rows, one after the other; each is read when it is needed."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts, self.width = parts, parts[0].width

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def rows(self, start: int, stop: int) -> Tensor:
        """See `Rows.rows`; nothing is copied where one part holds them."""
        parts, first = [], 0
        for part in self._parts:
            low, high = max(start - first, 0), min(stop - first, len(part))
            if low < high:
                parts.append(part.rows(low, high))
            first += len(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def in_memory(rows: Rows) -> Tensor | Rows:
    """All rows as one tensor, if they fit into half of the memory beside those of the other processes."""
    fits = 8 * len(rows) * rows.width * world_size() < available_memory() / 2
    return rows.rows(0, len(rows)) if fits else rows


def positions(
    gallery: Tensor | Rows,
    queries: Tensor,
    judged: Sequence[np.ndarray],
    *,
    device: torch.device,
    progress: Callable[[int], None] = lambda _queries: None,
) -> list[np.ndarray]:
    """The ranks of judged images when the whole gallery is ranked by cosine similarity to a query.

    A rank is one more than the number of images with a higher similarity, so counting replaces sorting. As in
    `excb.neighbours.nearest`, similarities are those of float64 rounded to multiples of 2^-36, and equals are ranked by
    their index: ranks depend neither on the device nor on how the work is divided.

    Args:
        gallery: [N, D] features, which need not be normalised. `Rows` are read once for each block of queries.
        queries: [Q, D] features.
        judged: for each query, indices in the gallery, [J] int64.
        device: where to compute.
        progress: called with the number of queries that are done.

    Returns:
        For each query the ranks of its judged images, [J] int64, in their order, from 1.

    Raises:
        UserError: a feature is NaN or infinite, or the gallery has more than 2^25 images.
    """
    require(len(gallery) <= _MOST, f"a gallery of {plural(len(gallery), 'image')} is too large: {_MOST:,} is the most")
    bank, asked = UnitRows(gallery, "gallery", device), UnitRows(queries, "query", device)
    ranks: list[np.ndarray] = []
    at_once = max(1, _TOGETHER // bank.width)
    for first in range(0, len(queries), at_once):
        own, left = judged[first : first + at_once], split(asked[first : first + at_once])
        keys, order = _judged_keys(bank, left, own, device).sort(dim=1)
        below = torch.zeros(len(own), keys.shape[1] + 1, dtype=torch.int64, device=device)
        for tile in spans(len(bank), max(len(own), bank.width), _TILE, device):
            rows = _keys(rounded_dots(left, split(bank[tile])), torch.arange(tile.start, tile.stop, device=device))
            # A row is ranked above the first `count` of the judged images, in ascending order.
            count = torch.searchsorted(keys, rows)
            below.scatter_add_(1, count, torch.ones_like(count))
        above = below.flip(1).cumsum(1).flip(1)[:, 1:]  # rows that are ranked above each judged image
        ranked = torch.empty_like(order).scatter_(1, order, above + 1).cpu().numpy()
        ranks += [ranked[query, : len(images)] for query, images in enumerate(own)]
        progress(len(own))
    return ranks


def _keys(similarities: Tensor, images: Tensor) -> Tensor:
    """Whole numbers that are ordered as the ranking is, the best one highest: by similarity, then by index."""
    return similarities.div(GRID).round_().to(torch.int64).mul_(_MOST).sub_(images)


def _judged_keys(
    bank: UnitRows, queries: tuple[Tensor, Tensor], judged: Sequence[np.ndarray], device: torch.device
) -> Tensor:
    """The keys of every query's judged images, [Q, most J] int64; the highest number of all where a query has fewer."""
    counts = np.array([len(images) for images in judged])
    keys = torch.full((len(judged), counts.max()), torch.iinfo(torch.int64).max, device=device)
    images, owners, columns = (
        torch.from_numpy(each).to(device)
        for each in (
            np.concatenate(judged),
            np.repeat(np.arange(len(judged)), counts),
            np.concatenate([np.arange(count) for count in counts]),
        )
    )
    for part in spans(len(images), bank.width, _TILE, device):
        left = tuple(each[owners[part], None] for each in queries)
        right = tuple(each[:, None] for each in split(bank.pick(images[part])))
        own = rounded_dots((left[0], left[1]), (right[0], right[1]))[:, 0, 0]
        keys[owners[part], columns[part]] = _keys(own, images[part])
    return keys
