"""Figures on halves: against loops that rank the images of each half alone, and against independent repetitions."""

import numpy as np
import pytest
import torch

from excb.inference.halves import divisions, halved_mean
from excb.neighbours.halves import enough_neighbours, retrieval_on_halves, vote_on_halves
from excb.neighbours.knn import vote
from excb.neighbours.nearest import nearest

CENTRES = np.random.default_rng(1).standard_normal((5, 8))


def drawn(images: int, random: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    labels = random.integers(0, 5, images)
    return torch.from_numpy(CENTRES[labels] + 1.2 * random.standard_normal((images, 8))), torch.from_numpy(labels)


def hits(rows: torch.Tensor, labels: torch.Tensor, k: int) -> np.ndarray:
    votes = vote(nearest(rows, rows, k, exclude_self=True), labels, ks=[k], temperatures=[0.07], classes=5)
    return np.asarray((votes[k, 0.07].top1 == labels).double())


def on_halves(rows: torch.Tensor, labels: torch.Tensor, k: int) -> np.ndarray:
    neighbours = nearest(rows, rows, enough_neighbours(k, len(rows)), exclude_self=True)
    return vote_on_halves(neighbours, labels, k=k, temperature=0.07, classes=5)


def test_votes_on_halves_are_those_of_each_half_alone() -> None:
    rows, labels = drawn(70, np.random.default_rng(0))
    found = on_halves(rows, labels, 3)
    for half, right in zip(divisions(70)[:20], found, strict=False):
        for own in map(torch.from_numpy, (half, ~half)):
            assert np.array_equal(right[own.numpy()], hits(rows[own], labels[own], 3).astype(bool))


def test_retrieval_on_halves_is_that_of_each_half_alone() -> None:
    random = np.random.default_rng(0)
    rows, _ = drawn(64, random)
    views = rows + 1.0 * torch.from_numpy(random.standard_normal(rows.shape))
    found = retrieval_on_halves(nearest(rows, views, 64).indices)
    for half, right in zip(divisions(64)[:20], found, strict=False):
        for own in map(torch.from_numpy, (half, ~half)):
            alone = nearest(rows[own], views[own], 1).indices[:, 0] == torch.arange(int(own.sum()))
            assert np.array_equal(right[own.numpy()], alone.numpy())


def test_the_error_is_that_of_repetitions() -> None:
    random, values, errors = np.random.default_rng(2), [], []
    for _ in range(40):
        rows, labels = drawn(80, random)
        right = hits(rows, labels, 3)
        values.append(float(right.mean()))
        errors.append(halved_mean(right, on_halves(rows, labels, 3)).error)
    assert np.mean(errors) == pytest.approx(float(np.std(values, ddof=1)), rel=0.4)
