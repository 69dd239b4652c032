"""The loss of `excb.objective.plain` without a matrix of rows x clusters: centroids are streamed, as keys in attention.

Because the entries of p_t sum to 1, a teacher's row enters the cross-entropy through one D-vector, its target:

    H(p_t, p_s) = logsumexp_k(x . c_k / tau_s) - x . target / tau_s,   target = sum_k p_t,k c_k.

Two operations suffice for it and its gradients, and each device has its own implementation of them:

- `average`: softmax(scores) V, with its normaliser. For the student V = C, and it is attention of x over the centroids:
  it holds the value of the loss, logsumexp(scores), and its gradient in x, the average / tau_s. The backward pass
  computes nothing of it a second time.
- `centroid_gradient`: softmax(scores)^T Y, the transposed product, for dL/dC = (p_s - p_t)^T x / tau_s. It computes
  scores again, and only for rows that move the centroids.

Scores are float32 (float64 of float64 rows) even under autocast: similarities in half precision tie.

Letters: V views, G of them global, B images, R rows, K clusters, D width.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from excb.exact import exact_products
from excb.objective import scores
from excb.objective.scores import CentroidGradient, Operations, Scores


@dataclass(frozen=True, kw_only=True)
class StreamedAssignment(scores.Assignment):
    """An assignment as its targets, with what p_t is computed from again for the centroids' gradient."""

    targets: Tensor  # [R, D] sum_k p_t,k v_k: all that the value of the loss needs of p_t
    scores: Scores  # balanced; p_t = softmax(scores / tau_t)
    peak: Tensor  # [R] the highest score; the confidence is the normaliser
    operations: Operations


@torch.no_grad()
def assign(
    scores: Scores, values: Tensor, operations: Operations, *, winner_gain: float = 1.0, clamp: bool = False
) -> StreamedAssignment:
    """Assign rows by their balanced scores and average `values` [K, D]: `excb.objective.loss.assign`."""
    assert scores.balance is not None
    scale, offset = scores.balance
    # Softmax does not see a constant, so scores are counted from 1. The balanced similarities of small clusters, which
    # crowd just below 1, then keep their digits.
    scores = dataclasses.replace(scores, balance=(scale, offset - 1))
    bounds = (-2.0, 0.0) if clamp else None
    with exact_products(scores.rows.device):
        if winner_gain != 1:  # one score of each row changes, and only a pass over all centroids shows which
            best = operations.average(scores, None, winners=True)
            gained = best.peak * winner_gain + (winner_gain - 1)
            replaced = best.winners, gained if bounds is None else gained.clamp(*bounds)
            scores = dataclasses.replace(scores, replaced=replaced)
        scores = dataclasses.replace(scores, bounds=bounds)
        average = operations.average(scores, values, winners=True)
    return StreamedAssignment(
        winners=average.winners,
        raw_winners=average.raw_winners,
        confidence=1 / average.total,
        targets=average.mean,
        scores=scores,
        peak=average.peak,
        operations=operations,
    )


def cross_entropy(
    queries: Tensor, centroids: Tensor, assignment: StreamedAssignment, pair_weights: Tensor, *, temperature: float
) -> Tensor:
    """`excb.objective.plain.cross_entropy` by two operations. `assignment` must have averaged these same centroids."""
    loss: Tensor = _CrossEntropy.apply(queries, centroids, _Pairs(assignment, pair_weights, temperature))
    return loss


@dataclass(frozen=True)
class _Pairs:
    """The arguments of `cross_entropy` that have no gradient."""

    assignment: StreamedAssignment
    weights: Tensor  # [G, V]
    temperature: float


class _CrossEntropy(torch.autograd.Function):
    """`cross_entropy`, differentiated by hand."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, centroids: Tensor, pairs: _Pairs) -> Tensor:
        (V, B, D), G = queries.shape, len(pairs.weights)
        assignment, operations = pairs.assignment, pairs.assignment.operations
        scores = Scores(queries.flatten(0, 1), centroids, pairs.temperature)
        with exact_products(queries.device):
            average = operations.average(scores, centroids, winners=False)
            targets = assignment.targets.view(G, B, D)
            weights = pairs.weights.to(targets) / max(1, B)
            targets = torch.einsum("gv,gbd->vbd", weights, targets)  # each view's, over the teacher's views
        row_weights = weights.sum(0)[:, None]  # [V, 1]
        log_normaliser = (average.peak / pairs.temperature + average.total.log()).view(V, B)
        grad = (row_weights[..., None] * average.mean.view(V, B, D)).sub_(targets).div_(pairs.temperature)
        teacher = assignment.scores
        for_centroids = [queries, centroids, weights, average.peak, average.total]
        for_centroids += [assignment.peak, assignment.confidence, teacher.rows, teacher.centroids]
        for_centroids += [*(teacher.balance or ()), *(teacher.replaced or ())]
        ctx.save_for_backward(grad, *(for_centroids if ctx.needs_input_grad[1] else ()))
        ctx.dtype, ctx.temperature, ctx.operations = queries.dtype, pairs.temperature, operations
        ctx.teacher = teacher.temperature, teacher.bounds
        return (row_weights * log_normaliser - (queries * targets).sum(2) / pairs.temperature).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        grad, *saved = ctx.saved_tensors
        grad_queries = (grad * grad_loss).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return grad_queries, None, None
        queries, centroids, weights, peak, total, *saved = saved
        teacher_peak, confidence, teacher_rows, teacher_centroids, scale, offset, *replaced = saved
        temperature, bounds = ctx.teacher
        student = Scores(queries.flatten(0, 1), centroids, ctx.temperature)
        balance = scale, offset
        teacher = Scores(teacher_rows, teacher_centroids, temperature, balance, bounds, tuple(replaced) or None)
        weights = weights * (grad_loss / ctx.temperature)
        row_weights = weights.sum(0)[:, None].expand(queries.shape[:2]).flatten()
        with exact_products(queries.device):
            vectors = -torch.einsum("gv,vbd->gbd", weights, queries.to(weights)).flatten(0, 1)
            grad_centroids = ctx.operations.centroid_gradient(
                CentroidGradient(student, peak, row_weights / total, student.rows),
                CentroidGradient(teacher, teacher_peak, confidence, vectors),
            )
        return grad_queries, grad_centroids.to(centroids.dtype), None
