"""Pairs of a train and a test image that are almost the same, upright or mirrored, from exact nearest neighbours."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from excb.distributed.collectives import world_size
from excb.neighbours.memory import search_memory
from excb.neighbours.nearest import nearest

EQUAL = 1e-9  # cosines this close to the threshold reach it: those of identical rows are 1 up to rounding
Place = tuple[int, int]  # a test image and a train image


class Pair(NamedTuple):
    """A test image and a train image that are almost the same."""

    test: int
    train: int
    similarities: dict[str, float]  # cosine by descriptor, the larger of upright and mirrored
    by: tuple[str, ...]  # descriptors whose threshold it reaches
    mirrored: bool  # whether the mirrored test image is the more similar, by the first of these descriptors


@dataclass(frozen=True)
class DescriptorRows:
    """Rows of one descriptor, on the CPU."""

    train: Tensor  # [N, D]
    upright: Tensor  # [Q, D], of the test images
    mirrored: Tensor  # [Q, D], of the mirrored test images

    def similarities(self, test: Tensor, train: Tensor) -> Tensor:
        """Cosines [2, P] float64 of P pairs, upright and mirrored."""
        return torch.stack([cosines(side[test], self.train[train]) for side in (self.upright, self.mirrored)])

    def plan(self, k: int) -> str:
        """The memory that `near` will hold, as a message."""
        N, D = self.train.shape
        return search_memory(N, D, len(self.upright), min(k, N), processes=world_size()).text

    def near(self, threshold: float, k: int, device: torch.device, progress: Callable[[int], None]) -> set[Place]:
        """(test, train) of pairs that reach a cosine, among the k nearest train images of each side of a test image.

        All ranks call this together. `progress` is called with numbers of test images, 2 Q in all.
        """
        places = set[Place]()
        for side in (self.upright, self.mirrored):
            neighbours = nearest(
                self.train,
                side,
                min(k, len(self.train)),
                share=world_size() > 1,
                device=device,
                progress=progress,
            )
            test, place = (neighbours.similarities >= threshold - EQUAL).nonzero(as_tuple=True)
            places.update(zip(test.tolist(), neighbours.indices[test, place].tolist(), strict=True))
        return places


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Cosines [P] float64 of rows side by side; 0 where a row is zero."""
    unit = [torch.nn.functional.normalize(rows.double(), dim=1) for rows in (first, second)]
    return (unit[0] * unit[1]).sum(1)


def pairs(
    rows: Mapping[str, DescriptorRows], thresholds: Mapping[str, float], near: Mapping[str, set[Place]]
) -> list[Pair]:
    """The pairs that any descriptor found, with the similarities by all of them; the most similar first.

    Args:
        rows: by descriptor.
        thresholds: cosines, by descriptor.
        near: what `DescriptorRows.near` found, by descriptor.
    """
    places = sorted(set().union(*near.values()))
    if not places:
        return []
    test, train = torch.tensor(places).T
    sides = {name: each.similarities(test, train) for name, each in rows.items()}
    made = []
    for number, pair in enumerate(places):
        similarities = {name: float(both[:, number].max()) for name, both in sides.items()}
        by = tuple(name for name in rows if pair in near[name] or similarities[name] >= thresholds[name] - EQUAL)
        upright, flipped = sides[by[0]][:, number].tolist()
        made.append(Pair(*pair, similarities, by, flipped > upright))
    return sorted(made, key=lambda pair: (-len(pair.by), *(-each for each in pair.similarities.values()), *pair[:2]))
