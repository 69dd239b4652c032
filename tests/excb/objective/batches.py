"""Batches that tests of the loss share, and what they compare of them."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from excb.exact import exact_products
from excb.method import balancing, pair_weights
from excb.objective import plain, streamed
from excb.objective.loss import assign, cross_entropy
from excb.objective.scores import Assignment

TAU_T, TAU_S = 0.04, 0.1
OFFICIAL: dict[str, Any] = {"winner_gain": 1.01, "clamp": True}
EXTRAS: list[dict[str, Any]] = [{}, OFFICIAL, {"winner_gain": 0.6}, {"winner_gain": 1.5}, {"clamp": True}]
CLUSTERS = [1, 2, 37, 129, 1031]


@dataclass(frozen=True)
class Batch:
    """All that the objective is computed from."""

    h: Tensor  # [V, B, D] unit rows of the projector
    g: Tensor  # [V, B, D] of the predictor
    centroids: Tensor  # [K, D] of the student
    queries: Tensor  # [G * B, D] of the teacher
    teacher: Tensor  # [K, D] centroids of the teacher
    scale: Tensor
    offset: Tensor
    weights_h: Tensor  # [G, V]
    weights_g: Tensor
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to(self, vectors: torch.dtype, numbers: torch.dtype, device: str = "cpu") -> "Batch":
        """The batch with its vectors and its other numbers in these types."""
        kinds = dict.fromkeys(("h", "g", "centroids", "queries", "teacher"), vectors)
        moved: dict[str, Any] = {
            name: value.to(device, kinds.get(name, numbers))
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return dataclasses.replace(self, **moved)


def sizes_of(clusters: int, kind: Literal["mixed", "one", "equal"]) -> Tensor:
    """Relative sizes: of all magnitudes, with empty and huge clusters; one cluster that has all; equal ones."""
    sizes = torch.ones(clusters)
    if kind == "mixed":
        sizes = 2.0 ** -torch.randint(0, 30, (clusters,)).double()
        sizes[1::5] = 0
        sizes[clusters // 2] = 4 * sizes.sum() + 1
    if kind == "one":
        sizes = torch.zeros(clusters)
        sizes[clusters // 2] = 1
    return (sizes / sizes.sum()).double()


def batch_of(
    clusters: int,
    *,
    views: tuple[int, int] = (2, 3),
    images: int = 3,
    width: int = 16,
    sizes: Literal["mixed", "one", "equal"] = "mixed",
    spread: float = 1.0,
    empty_weight: float = 0.001,
    extras: dict[str, Any] | None = None,
    **weighting: Any,
) -> Batch:
    """A batch in float64. The smaller `spread`, the nearer rows are to centroids, and the surer the networks."""
    torch.manual_seed(clusters + 7 * images)
    total = sum(views)

    def near(rows: Tensor) -> Tensor:
        return F.normalize(rows + spread * F.normalize(torch.randn_like(rows), dim=-1), dim=-1)

    centroids = F.normalize(torch.randn(clusters, width, dtype=torch.float64), dim=1)
    seeds = centroids[torch.randint(clusters, (images,))]
    h = near(seeds.expand(total, images, width))
    empty_weights = empty_weight * torch.rand(clusters, dtype=torch.float64)
    scale, offset = balancing(sizes_of(clusters, sizes), empty_weight=empty_weights)
    queries = near(seeds.expand(views[0], images, width)).flatten(0, 1)
    weights = pair_weights(*views, **weighting)
    return Batch(h, near(h), centroids, queries, near(centroids), scale, offset, *weights, extras or {})


@dataclass(frozen=True)
class Outcome:
    """The values that tests compare."""

    loss: Tensor
    gradients: dict[str, Tensor]
    targets: Tensor
    winners: Tensor
    raw_winners: Tensor
    confidence: Tensor


def assigned(batch: Batch, backend: str = "auto", centroids: Tensor | None = None) -> Assignment:
    """The teacher's assignment, by targets of these centroids of the student."""
    values = batch.centroids if centroids is None else centroids
    tensors = (batch.queries, batch.teacher, batch.scale, batch.offset, values)
    return assign(*tensors, temperature=TAU_T, **batch.extras, backend=backend)


def targets_of(assignment: Assignment, centroids: Tensor) -> Tensor:
    """The average centroid of every row, [R, D]."""
    if isinstance(assignment, plain.FullAssignment):
        with exact_products(centroids.device):
            return assignment.probabilities @ centroids.to(assignment.probabilities)
    assert isinstance(assignment, streamed.StreamedAssignment)
    return assignment.targets


def outcome(batch: Batch, moving: int, backend: str = "auto") -> Outcome:
    """The loss as `excb.method` composes it."""
    h, g, centroids = (t.detach().clone().requires_grad_() for t in (batch.h, batch.g, batch.centroids))
    assignment = assigned(batch, backend, centroids)

    def term(rows: Tensor, c: Tensor, weights: Tensor) -> Tensor:
        return cross_entropy(rows, c, assignment, weights, temperature=TAU_S)

    loss = term(h[:moving], centroids, batch.weights_h[:, :moving])
    loss = loss + term(h[moving:], centroids.detach(), batch.weights_h[:, moving:])
    loss = loss + term(g, centroids.detach(), batch.weights_g)
    gradients = torch.autograd.grad(loss, (h, g, centroids), allow_unused=True, materialize_grads=True)
    targets = targets_of(assignment, batch.centroids)
    assert not targets.requires_grad
    return Outcome(
        loss.detach(),
        dict(zip(("h", "g", "centroids"), gradients, strict=True)),
        targets,
        assignment.winners,
        assignment.raw_winners,
        assignment.confidence,
    )


def reference(batch: Batch, moving: int) -> Outcome:
    """The plain backend in float64, on the CPU."""
    return outcome(batch.to(torch.float64, torch.float64), moving, "plain")


def apart(actual: Tensor, expected: Tensor) -> float:
    """The length of the difference, relative to the tensor's; of one that should be zero, as it is."""
    length = expected.double().norm().item()
    difference = (actual.double().cpu() - expected).norm().item()
    return difference / length if length > 1e-15 else difference


def assert_equal(
    batch: Batch,
    tolerance: float,
    *,
    moving: int = 2,
    backend: str = "auto",
    rounded: float = 0,
    expected: Outcome | None = None,
) -> None:
    """Compare with the plain backend; `rounded` is the tolerance of gradients that are returned in half precision."""
    actual, expected = outcome(batch, moving, backend), expected or reference(batch, moving)
    for name, gradient in expected.gradients.items():
        assert actual.gradients[name].dtype == getattr(batch, name).dtype
        assert apart(actual.gradients[name], gradient) <= max(tolerance, rounded), name
    for name in ("loss", "targets", "confidence"):
        assert apart(getattr(actual, name), getattr(expected, name)) <= tolerance, name
    for name in ("winners", "raw_winners"):
        assert getattr(actual, name).tolist() == getattr(expected, name).tolist(), name
