"""Balanced assignments to clusters of a teacher's features, against loops over clusters: B, targets, loss and sizes."""

import pytest
import torch

from excb.errors import UserError
from excb.pretrain.distil.assignments import Assignments
from tests.oracle import argmax
from tests.pretrain.distil import cases, loops

CLUSTERS = 6
SIZES = {
    "balanced": [1 / 6] * 6,
    "small and large": [0.02, 0.08, 0.4, 0.3, 0.1, 0.1],
    "empty and overfull": [0.0, 0.0, 0.9, 0.05, 0.025, 0.025],
}


def objective(sizes: list[float] | None = None, **values: object) -> Assignments:
    made = Assignments(cases.settings(assignments=1.0, clusters=CLUSTERS, **values), cases.WIDTH).double()
    made.centroids.copy_(cases.unit_rows(CLUSTERS, cases.WIDTH, seed=3))
    if sizes is not None:
        made.sizes.copy_(torch.tensor(sizes))
    return made


@cases.every_way
@pytest.mark.parametrize("name", SIZES)
def test_value_gradient_and_winners_are_those_of_the_loops(sees: str, name: str) -> None:
    made, predicted, targets = objective(SIZES[name]), cases.predictions(), cases.targets(sees)
    weights, sizes = cases.weights(sees), [float(s) for s in made.sizes]

    def oracle(rows: torch.Tensor) -> tuple[torch.Tensor, list[list[int]]]:
        return loops.assignments(rows, targets, weights, made.centroids, sizes, tau_t=0.3, tau_s=0.5)

    loss, pending = made(predicted, targets, weights)
    cases.same_value_and_gradient(loss, lambda rows: oracle(rows)[0], predicted, {"rtol": 1e-8, "atol": 1e-10})
    assert pending.tolist() == oracle(predicted)[1]


def test_balancing_changes_who_wins() -> None:
    """Else the cases above would not tell B from its absence."""
    targets = cases.targets("view")
    winners = {
        name: objective(sizes)(cases.predictions(), targets, cases.weights("view"))[1] for name, sizes in SIZES.items()
    }
    assert not torch.equal(winners["balanced"], winners["small and large"])
    assert not torch.equal(winners["balanced"], winners["empty and overfull"])


def test_sizes_follow_the_counted_assignments() -> None:
    made = objective(sizes_momentum=0.7)
    wanted = made.sizes.tolist()
    for batch in range(3):
        winners = torch.randint(0, CLUSTERS - 2, (4, 2), generator=torch.Generator().manual_seed(batch))
        made.update(winners)
        counted = winners.flatten().tolist()
        wanted = [0.7 * s + 0.3 * counted.count(k) / len(counted) for k, s in enumerate(wanted)]  # Eq. 8, 9
        assert made.sizes.tolist() == pytest.approx(wanted, rel=1e-12)


def test_centroids_start_as_means_of_the_samples_nearest_to_them_and_stay() -> None:
    made, samples = objective(), list(cases.unit_rows(40, cases.WIDTH, seed=8))
    made.start(torch.stack(samples), seed=0)
    nearest = [argmax([float(row.dot(c)) for c in made.centroids]) for row in samples]
    for k, centroid in enumerate(made.centroids):
        mean = torch.stack([row for row, winner in zip(samples, nearest, strict=True) if winner == k]).sum(0)
        torch.testing.assert_close(centroid, mean / mean.norm())
    assert not list(made.parameters())


def test_fewer_images_than_clusters_are_refused_by_the_option_of_the_teachers() -> None:
    with pytest.raises(UserError, match=r"lower distil\.clusters to at most 5") as caught:
        objective().start(cases.unit_rows(5, cases.WIDTH), seed=0)
    assert "method." not in str(caught.value)
    assert "\n" not in str(caught.value)
