"""Tests of hard assignment and of neighbouring centroids, against the same written without tiles."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from excb.errors import UserError
from excb.features.cache import CachedFeatures
from excb.heads import MLP
from excb.hub.trained_heads import NetworkHeads
from excb.method import CentroidLayer
from excb.transfer.clusters import assignment
from excb.transfer.clusters.assignment import assign_clusters, neighbours

pytestmark = pytest.mark.usefixtures("one_thread")


def random_heads(clusters: int, *, gain: bool = False, seed: int = 0) -> NetworkHeads:
    torch.manual_seed(seed)
    projector = MLP(10, 16, 6, layers=2, style="batchnorm")
    for module in projector:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]
    lengths = 0.5 + torch.rand(clusters) if gain else None
    return NetworkHeads(projector, None, CentroidLayer(clusters, 6), gain=lengths).eval().requires_grad_(False)


def naive(heads: NetworkHeads, rows: Tensor) -> Tensor:
    """z [N, K], image by image in float64, from the layers' own weights."""
    double = heads.double()
    centroids = double.centroids.weight / double.centroids.weight.norm(dim=1, keepdim=True)
    found = []
    for row in rows.double():
        projected = double.projector(row[None])[0]
        found.append(centroids @ projected / projected.norm())
    heads.float()
    z = torch.stack(found)
    return z if heads.gain is None else z * heads.gain


@pytest.mark.parametrize("gain", [False, True])
@pytest.mark.parametrize("tile", [2**24, 50, 1])
def test_assignments_are_those_of_a_loop(monkeypatch: pytest.MonkeyPatch, tile: int, gain: bool) -> None:
    monkeypatch.setattr(assignment, "TILE", tile)
    heads, rows = random_heads(20, gain=gain), torch.randn(57, 10)
    expected = naive(heads, rows)
    counts: list[int] = []
    found = assign_clusters(heads, CachedFeatures([rows[:40].numpy(), rows[40:].numpy()]), progress=counts.append)
    best, order = expected.sort(dim=1, descending=True)
    np.testing.assert_array_equal(found.first, order[:, 0])
    np.testing.assert_array_equal(found.second, order[:, 1])
    np.testing.assert_allclose(found.similarity, best[:, 0], atol=1e-6)
    np.testing.assert_allclose(found.margin, best[:, 0] - best[:, 1], atol=1e-6)
    assert sum(counts) == 57
    assert found.sizes.tolist() == [int((order[:, 0] == k).sum()) for k in range(20)]
    means = [best[order[:, 0] == k, 0].mean().nan_to_num().item() for k in range(20)]
    np.testing.assert_allclose(found.mean(found.similarity), means, atol=1e-6)


def test_a_single_cluster_is_refused() -> None:
    with pytest.raises(UserError, match="one cluster only"):
        assign_clusters(random_heads(1), CachedFeatures([np.zeros((2, 10), np.float32)]))


@pytest.mark.parametrize("tile", [2**24, 100, 1])
def test_neighbours_and_duplicates_are_exact_whatever_the_tile(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    monkeypatch.setattr(assignment, "TILE", tile)
    rows = F.normalize(torch.randn(41, 5, generator=torch.Generator().manual_seed(1)), dim=1)
    rows[[7, 19, 30]] = rows[3].clone()  # four of a kind: six pairs
    rows[40] = F.normalize(rows[11] + 0.001 * rows[12], dim=0)  # nearly: one pair
    cosines = rows.double() @ rows.double().T - 3 * torch.eye(41)
    counts: list[int] = []
    found = neighbours(rows, most=6, threshold=0.999, progress=counts.append)
    assert sum(counts) == 41
    assert found.pairs == int((cosines.triu(1) > 0.999).sum()) == 7
    assert found.twins.nonzero()[0].tolist() == [3, 7, 11, 19, 30, 40]
    np.testing.assert_allclose(found.cosines, cosines.sort(dim=1, descending=True).values[:, :6], atol=1e-6)
    np.testing.assert_allclose(cosines.gather(1, torch.from_numpy(found.nearest)), found.cosines, atol=1e-6)


def test_few_clusters_have_few_neighbours() -> None:
    assert neighbours(torch.eye(3), most=8, threshold=0.99).nearest.shape == (3, 2)
