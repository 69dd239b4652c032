"""Centering against DINO's update written out: the centre before the batch, then the batch into the centre."""

import pytest
import torch
from torch import Tensor

from excb.balancing.centering import Centering
from excb.balancing.interface import TeacherBatch

pytestmark = pytest.mark.usefixtures("one_thread")


def batch(seed: int, rows: int = 8, clusters: int = 5) -> TeacherBatch:
    generator = torch.Generator().manual_seed(seed)
    queries, centroids = (
        torch.nn.functional.normalize(torch.randn(count, 6, generator=generator, dtype=torch.float64), dim=1)
        for count in (rows, clusters)
    )
    return TeacherBatch(queries, centroids, torch.full((clusters,), 1 / clusters).double(), 0)


def similarities(given: TeacherBatch) -> Tensor:
    return given.queries @ given.centroids.T


def test_a_batch_is_centred_by_those_before_it() -> None:
    balancer, momentum = Centering(5, 0.9).double(), 0.9
    center = torch.zeros(5, dtype=torch.float64)
    for seed in range(4):
        given = batch(seed)
        scale, offset = balancer.affine(given)
        z = similarities(given)
        torch.testing.assert_close(z * scale + offset, z - center)
        torch.testing.assert_close(balancer.center, center)  # until the update, however often it is asked
        balancer.update(balancer.statistic(given))
        center = momentum * center + (1 - momentum) * z.mean(0)
    assert float(center.abs().max()) > 0.01


def test_the_centre_is_state() -> None:
    first, second = Centering(5, 0.9).double(), Centering(5, 0.9).double()
    first.update(first.statistic(batch(0)))
    assert list(first.state_dict()) == ["center"]
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.affine(batch(1))[1], second.affine(batch(1))[1])


@pytest.mark.parametrize("momentum", [0.0, 1.0])
def test_a_momentum_of_zero_takes_the_batch_and_of_one_nothing(momentum: float) -> None:
    balancer = Centering(5, momentum).double()
    balancer.update(balancer.statistic(batch(0)))
    expected = similarities(batch(0)).mean(0)
    torch.testing.assert_close(balancer.center, expected * (1 - momentum))
