"""MIRA as an affine map against its iteration on the whole matrix and a numeric optimum of its objective."""

import itertools

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor

from excb.balancing.interface import TeacherBatch
from excb.balancing.mira import MIRA
from excb.balancing.sinkhorn import SinkhornKnopp
from tests import oracle

pytestmark = pytest.mark.usefixtures("one_thread")


def batch(rows: int = 24, clusters: int = 7) -> TeacherBatch:
    """Similarities that crowd in few clusters."""
    generator = torch.Generator().manual_seed(4)
    queries = torch.randn(rows, 5, generator=generator, dtype=torch.float64) + 1
    centroids = torch.randn(clusters, 5, generator=generator, dtype=torch.float64)
    sizes = torch.full((clusters,), 1 / clusters, dtype=torch.float64)
    return TeacherBatch(
        queries / queries.norm(dim=1, keepdim=True), centroids / centroids.norm(dim=1, keepdim=True), sizes, 0
    )


def assignment(given: TeacherBatch, temperature: float, beta: float, iterations: int = 30) -> Tensor:
    scale, offset = MIRA(temperature, beta, iterations).affine(given)
    return torch.softmax((given.queries @ given.centroids.T * scale + offset) / temperature, 1)


def objective(w: Tensor, p: Tensor, beta: float) -> Tensor:
    """mean KL(w_r || p_r) - beta (H(mean w) - mean H(w_r)): what MIRA minimises."""
    divergence = (w * (w / p).log()).sum(1).mean()
    marginal = w.mean(0)
    information = -(marginal * marginal.log()).sum() + (w * w.log()).sum(1).mean()
    return divergence - beta * information


@pytest.mark.parametrize(("temperature", "beta"), [(0.225, 2 / 3), (0.1, 2 / 3), (0.225, 0.75), (0.04, 0.3)])
@pytest.mark.parametrize("iterations", [0, 1, 30])
def test_assignment_is_that_of_the_published_iteration(temperature: float, beta: float, iterations: int) -> None:
    given = batch()
    theirs = oracle.mira(given.queries @ given.centroids.T, temperature, beta, iterations)
    torch.testing.assert_close(assignment(given, temperature, beta, iterations), theirs, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("beta", [0.3, 2 / 3, 0.9])
def test_its_fixed_point_is_the_optimum_found_without_it(beta: float) -> None:
    given, temperature = batch(rows=6, clusters=4), 0.225
    p = torch.softmax(given.queries @ given.centroids.T / temperature, 1)

    def value_and_slope(logits: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.from_numpy(logits).view(6, 4).requires_grad_()
        value = objective(torch.softmax(free, 1), p, beta)
        value.backward()
        assert free.grad is not None
        return float(value.detach()), free.grad.flatten().numpy()

    start = np.random.default_rng(0).normal(size=24)
    found = optimize.minimize(
        value_and_slope, start, jac=True, method="L-BFGS-B", options={"ftol": 1e-16, "gtol": 1e-10}
    )
    optimum = torch.softmax(torch.from_numpy(found.x).view(6, 4), 1)
    ours = assignment(given, temperature, beta, iterations=300)
    assert float(objective(ours, p, beta)) <= found.fun + 1e-12
    torch.testing.assert_close(ours, optimum, rtol=0, atol=1e-4)
    assert float(objective(ours, p, beta)) < float(objective(p, p, beta))


def test_beta_leads_from_the_softmax_to_equal_shares() -> None:
    given, temperature = batch(), 0.1
    z = given.queries @ given.centroids.T
    torch.testing.assert_close(assignment(given, temperature, 0.0), torch.softmax(z / temperature, 1))
    # tau_t (1 - beta) is held: then only the step's factor beta tells it from Sinkhorn-Knopp.
    worst = []
    for beta in (0.0, 0.5, 0.9, 0.99):
        shares = 7 * assignment(given, temperature / (1 - beta), beta, iterations=3000).mean(0)
        worst.append(float((shares - 1).abs().max()))
    assert all(later < earlier for earlier, later in itertools.pairwise(worst))
    scale, offset = SinkhornKnopp(temperature, 3000).affine(given)
    equal = torch.softmax((z * scale + offset) / temperature, 1)
    nearly = assignment(given, temperature / 1e-6, 1 - 1e-6, iterations=3000)
    torch.testing.assert_close(nearly, equal, rtol=0, atol=1e-3)


def test_beta_moves_as_in_the_authors_code() -> None:
    # movinghoon/MIRA, train.py: beta_final - 0.5 (1 + cos(pi step / steps)) (beta_final - beta_initial).
    given, first, last = batch(), 0.75, 2 / 3
    balancer = MIRA(0.225, last, 5, first)
    for step in (0, 3, 8, 10):
        balancer.set_progress(step / 10)
        beta = last - 0.5 * (1 + np.cos(np.pi * step / 10)) * (last - first)
        for ours, theirs in zip(balancer.affine(given), MIRA(0.225, beta, 5).affine(given), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    still = MIRA(0.225, last, 5)
    still.set_progress(0.1)
    assert torch.equal(still.affine(given)[0], torch.full((7,), 1 / (1 - last), dtype=torch.float64))


def test_nothing_is_remembered() -> None:
    balancer = MIRA(0.225, 2 / 3, 30)
    assert balancer.state_dict() == {}
    assert balancer.statistic(batch()) is None
