"""Soft shares of a batch: in tiles as in one piece, and in float32 where exponentials would vanish."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from excb.balancing import shares
from excb.balancing.interface import TeacherBatch
from excb.balancing.mira import MIRA
from excb.balancing.shares import log_relative_shares
from excb.balancing.sinkhorn import SinkhornKnopp

pytestmark = pytest.mark.usefixtures("one_thread")


def batch(rows: int, clusters: int, width: int = 6, seed: int = 0) -> TeacherBatch:
    generator = torch.Generator().manual_seed(seed)

    def directions(count: int) -> Tensor:
        return F.normalize(torch.randn(count, width, generator=generator, dtype=torch.float64), dim=1)

    return TeacherBatch(directions(rows), directions(clusters), torch.full((clusters,), 1 / clusters).double(), 0)


@pytest.mark.parametrize("tile", [1, 26, 2**22])
def test_shares_are_those_of_the_softmax_whatever_the_tile(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    monkeypatch.setattr(shares, "TILE", tile)
    given = batch(11, 13)
    potential = torch.linspace(-2, 2, 13, dtype=torch.float64)
    soft = torch.softmax(given.queries @ given.centroids.T / 0.1 + potential, 1)
    torch.testing.assert_close(log_relative_shares(given, 10, potential), (13 * soft.mean(0)).log())


@pytest.mark.parametrize("temperature", [0.05, 0.04, 0.01])
@pytest.mark.parametrize("kind", ["sinkhorn", "mira"])
def test_a_cluster_that_no_sample_is_near_keeps_its_share_in_float32(kind: str, temperature: float) -> None:
    """All samples point away from one cluster, by so much that the exponential of its scores is 0 in float32."""
    given = batch(32, 8)
    queries = F.normalize(given.queries - 8 * given.centroids[3], dim=1)
    double = TeacherBatch(queries, given.centroids, given.sizes, 0)
    single = TeacherBatch(queries.float(), given.centroids.float(), given.sizes.float(), 0)
    if kind == "sinkhorn":
        sharpness = 1 / temperature
        balancer: SinkhornKnopp | MIRA = SinkhornKnopp(temperature, 3)
    else:
        sharpness = 3 / temperature
        balancer = MIRA(temperature, 2 / 3, 30)
    if temperature == 0.01:
        farthest = float((queries @ given.centroids.T).min())
        assert math.exp((farthest - 1) * sharpness) < torch.finfo(torch.float32).tiny
    expected, found = balancer.affine(double), balancer.affine(single)
    for value, other in zip(found, expected, strict=True):
        assert value.isfinite().all()
        torch.testing.assert_close(value.double(), other, rtol=1e-5, atol=1e-5)
