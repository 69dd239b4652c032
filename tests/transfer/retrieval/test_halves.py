"""Scores on halves: against rankings of each half alone, in blocks of queries, with a class that halves lack."""

import numpy as np
import pytest
import torch

from excb.inference.halves import divisions, from_bytes
from excb.transfer.retrieval.halves import HalfScores
from excb.transfer.retrieval.ranking import relevant_ranks

CPU = torch.device("cpu")
KS = (1, 3)


def drawn(images: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = np.append(random.integers(0, 4, images - 1), 4)  # one image of the last class
    return torch.from_numpy(np.eye(5)[labels] + 0.8 * random.standard_normal((images, 5))), labels


def alone(
    rows: torch.Tensor, bank: torch.Tensor, targets: np.ndarray, labels: np.ndarray, *, shared: bool
) -> np.ndarray:
    """R-precision and recall of one half's queries in its gallery, [F, n]."""
    own = range(len(rows)) if shared else None
    ranks = relevant_ranks(bank, rows, labels, targets, own, device=CPU)
    scores = [
        [np.mean(one <= len(one)), *(float(one[0] <= k) for k in KS)] if len(one) else [np.nan] * 3 for one in ranks
    ]
    return np.array(scores).T


@pytest.mark.parametrize("shared", [True, False])
def test_scores_are_those_of_each_half_alone(shared: bool) -> None:
    rows, targets = drawn(41, 0)
    bank, labels = (rows, targets) if shared else drawn(57, 1)
    halves = HalfScores(labels, targets, KS, shared=shared)
    for block in (slice(0, 15), slice(15, 41)):
        own = range(block.start, block.stop) if shared else None
        relevant_ranks(bank, rows[block], labels, targets[block], own, device=CPU, halves=halves, first=block.start)
    found = from_bytes(halves.packed())
    assert found.shape == (3, len(divisions(41)), 41)
    assert np.isnan(found).any()
    queries = divisions(41)
    galleries = queries if shared else divisions(57, number=len(queries), of=1)
    for scores, query, gallery in zip(found.swapaxes(0, 1)[:10], queries, galleries, strict=False):
        for mine, theirs in ((query, gallery), (~query, ~gallery)):
            expected = alone(rows[mine], bank[theirs], targets[mine], labels[theirs], shared=shared)
            np.testing.assert_allclose(scores[:, mine], expected, atol=0.0025)
