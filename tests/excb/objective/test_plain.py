"""The plain loss against the equations written out pair by pair: value, every gradient, every extra."""

import dataclasses
from typing import Any

import pytest
import torch

from excb.objective import plain
from tests.excb.objective.batches import (
    CLUSTERS,
    EXTRAS,
    OFFICIAL,
    TAU_S,
    TAU_T,
    Batch,
    Outcome,
    assert_equal,
    assigned,
    batch_of,
    outcome,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def equations(batch: Batch, moving: int) -> Outcome:
    """Eq. 3 to 7 in float64, one pair of views after the other."""
    b = batch.to(torch.float64, torch.float64)
    h, g, centroids = (t.detach().clone().requires_grad_() for t in (b.h, b.g, b.centroids))
    (G, V), images = b.weights_h.shape, b.h.shape[1]
    z = b.queries @ b.teacher.T
    balanced = b.scale * z + b.offset
    best = balanced.argmax(1)
    balanced[range(len(best)), best] *= b.extras.get("winner_gain", 1.0)
    if b.extras.get("clamp"):
        balanced = balanced.clamp(-1, 1)
    p = torch.softmax(balanced / TAU_T, dim=1)
    p_t = p.unflatten(0, (G, images))
    loss = torch.zeros((), dtype=torch.float64)
    for t in range(G):
        for v in range(V):
            c = centroids if v < moving else centroids.detach()
            for weights, rows, keys in ((b.weights_h, h, c), (b.weights_g, g, centroids.detach())):
                entropy = -(p_t[t] * torch.log_softmax(rows[v] @ keys.T / TAU_S, dim=1)).sum(1)
                loss = loss + weights[t, v] * entropy.mean()
    gradients = torch.autograd.grad(loss, (h, g, centroids), allow_unused=True, materialize_grads=True)
    return Outcome(
        loss.detach(),
        dict(zip(("h", "g", "centroids"), gradients, strict=True)),
        p @ b.centroids,
        p.argmax(1),
        z.argmax(1),
        p.max(1).values,
    )


@pytest.mark.parametrize("extras", EXTRAS, ids=str)
@pytest.mark.parametrize("clusters", CLUSTERS)
def test_float64_equals_the_equations(clusters: int, extras: dict[str, Any]) -> None:
    batch = batch_of(clusters, extras=extras)
    assert_equal(batch, 1e-12, backend="plain", expected=equations(batch, 2))


@pytest.mark.parametrize("extras", [{}, OFFICIAL], ids=str)
@pytest.mark.parametrize("sizes", ["mixed", "one", "equal"])
@pytest.mark.parametrize("clusters", CLUSTERS)
def test_float32_equals_the_equations(clusters: int, sizes: Any, extras: dict[str, Any]) -> None:
    batch = batch_of(clusters, images=5, sizes=sizes, spread=3.0, extras=extras).to(torch.float32, torch.float32)
    assert_equal(batch, 1e-6, backend="plain", expected=equations(batch, 2))


@pytest.mark.parametrize("views", [(2, 6), (2, 0), (1, 2), (1, 0), (3, 1)])
@pytest.mark.parametrize("reduction", ["halves", "sum", "pairs", "pseudocode"])
def test_every_reduction_and_number_of_views(reduction: str, views: tuple[int, int]) -> None:
    batch = batch_of(37, views=views, reduction=reduction)
    for moving in {views[0], sum(views)}:
        assert_equal(batch, 1e-12, moving=moving, backend="plain", expected=equations(batch, moving))


def test_bfloat16_rows_are_scored_in_float32() -> None:
    batch = batch_of(129, extras=OFFICIAL).to(torch.bfloat16, torch.float32)
    assert_equal(batch, 1e-6, rounded=2**-8, backend="plain", expected=equations(batch, 2))


def test_autocast_does_not_round_similarities() -> None:
    batch = batch_of(129, width=64).to(torch.float32, torch.float32)
    expected = outcome(batch, 2, "plain")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = outcome(batch, 2, "plain")
    assert torch.equal(actual.loss, expected.loss)
    assert torch.equal(actual.targets, expected.targets)


def test_an_assignment_of_any_probabilities_is_described() -> None:
    z = torch.tensor([[0.1, 0.9, 0.2], [0.5, 0.5, 0.1]])
    p = torch.tensor([[0.6, 0.3, 0.1], [0.25, 0.25, 0.5]])
    assignment = plain.assignment_of(p, z)
    assert assignment.winners.tolist() == [0, 2]
    assert assignment.raw_winners.tolist() == [1, 0]
    assert assignment.confidence.tolist() == [pytest.approx(0.6), 0.5]
    assert assignment.probabilities is p


def test_of_equal_clusters_the_first_wins() -> None:
    empty = batch_of(200, sizes="one", empty_weight=0.0)
    assert set(assigned(empty, "plain").winners.tolist()) == {0}


def test_balanced_scores_that_crowd_below_one_keep_their_digits() -> None:
    # Where s K = 2^-20, balanced similarities differ in their eighth digit, and float32 has seven.
    batch = batch_of(500, images=16, sizes="equal")
    batch = dataclasses.replace(batch, scale=batch.scale * 2**-20, offset=1 - batch.scale * 2**-20)
    assignment = assigned(batch.to(torch.float32, torch.float32), "plain")
    assert torch.equal(assignment.winners, equations(batch, 2).winners)
    rounded = (batch.queries.float() @ batch.teacher.float().T) * batch.scale.float() + batch.offset.float()
    assert not torch.equal(rounded.argmax(1), assignment.winners)  # so this test can fail
