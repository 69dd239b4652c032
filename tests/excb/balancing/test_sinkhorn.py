"""Sinkhorn-Knopp as an affine map against SwAV's algorithm on the whole matrix, and what it converges to."""

import itertools

import pytest
import torch
from torch import Tensor

from excb.balancing.interface import TeacherBatch
from excb.balancing.sinkhorn import SinkhornKnopp
from tests import oracle

pytestmark = pytest.mark.usefixtures("one_thread")


def batch(rows: int = 24, clusters: int = 7) -> TeacherBatch:
    """Similarities that crowd in few clusters."""
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(rows, 5, generator=generator, dtype=torch.float64) + 1
    centroids = torch.randn(clusters, 5, generator=generator, dtype=torch.float64)
    sizes = torch.full((clusters,), 1 / clusters, dtype=torch.float64)
    return TeacherBatch(oracle_unit(queries), oracle_unit(centroids), sizes, 0)


def oracle_unit(rows: Tensor) -> Tensor:
    return rows / rows.square().sum(1, keepdim=True).sqrt()


def assignment(given: TeacherBatch, temperature: float, iterations: int) -> Tensor:
    scale, offset = SinkhornKnopp(temperature, iterations).affine(given)
    return torch.softmax((given.queries @ given.centroids.T * scale + offset) / temperature, 1)


@pytest.mark.parametrize("iterations", [0, 1, 3, 10])
@pytest.mark.parametrize("temperature", [0.04, 0.05, 0.5])
def test_assignment_is_swavs(temperature: float, iterations: int) -> None:
    given = batch()
    z = given.queries @ given.centroids.T
    # Without any iteration their matrix sums to 1 and its rows to nothing in particular: the softmax.
    theirs = oracle.sinkhorn(z, temperature, iterations) if iterations else torch.softmax(z / temperature, 1)
    torch.testing.assert_close(assignment(given, temperature, iterations), theirs, rtol=1e-9, atol=1e-12)


def test_shares_become_equal_with_the_iterations() -> None:
    given = batch()
    worst = [float((7 * assignment(given, 0.05, n).mean(0) - 1).abs().max()) for n in (0, 3, 30, 3000)]
    assert worst[0] > 1
    assert all(later < earlier for earlier, later in itertools.pairwise(worst))
    assert worst[-1] < 1e-6


def test_nothing_is_remembered() -> None:
    balancer, given = SinkhornKnopp(0.05, 3), batch()
    assert balancer.state_dict() == {}
    assert balancer.statistic(given) is None
    first = balancer.affine(given)
    balancer.update(None)
    assert all(torch.equal(one, other) for one, other in zip(first, balancer.affine(given), strict=True))
