"""Groups of images that stay together in every split: equal files, near-copies, and series of a table."""

from collections.abc import Iterable, Sequence

import numpy as np

from excb.images.copies import comparable, equal_images, look_once, near_pairs
from excb.images.image_set import CodedImages


def copy_groups(images: CodedImages) -> tuple[np.ndarray, bool]:
    """The group of every image, int64 [N], by its files and pictures; and whether pictures were compared.

    In a group are equal files, and pictures that look the same by `near_pairs`, linked two by two: a burst of
    photographs is one group. More images than `comparable` allows are compared by their files only.
    """
    if looked := comparable([images]):
        look_once([images])
    pairs = [(group[0][1], other[1]) for group in equal_images([images]) for other in group[1:]]
    if looked:
        pairs += near_pairs(images)
    return linked(len(images), pairs), looked


def with_series(groups: np.ndarray, series: Sequence[str]) -> np.ndarray:
    """Groups [N] joined by the names that images share; an empty name joins nothing."""
    first, pairs = dict[str, int](), list[tuple[int, int]]()
    for index, name in enumerate(series):
        if name:
            pairs.append((first.setdefault(name, index), index))
    _, starts = np.unique(groups, return_index=True)
    pairs += [(int(starts[group]), index) for index, group in enumerate(np.unique(groups, return_inverse=True)[1])]
    return linked(len(groups), pairs)


def linked(number: int, pairs: Iterable[tuple[int, int]]) -> np.ndarray:
    """The components of a graph of so many nodes, numbered by their first node, int64 [number]."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = np.array(list(pairs), np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(number, number))
    labels: np.ndarray = connected_components(graph, directed=False)[1]
    return labels.astype(np.int64)


def members(groups: np.ndarray, paths: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The paths of each group [N] of two or more images, the largest first."""
    order = np.argsort(groups, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    found = [tuple(paths[index] for index in part.tolist()) for part in parts if len(part) > 1]
    return tuple(sorted(found, key=len, reverse=True))
