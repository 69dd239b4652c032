"""The objective of `excb.method` without a matrix of rows x clusters: centroids pass by in tiles, as keys in attention.

Both networks *score* centroids: the student by similarity and temperature, x . c_k / tau_s, the teacher through the
balancing operator too. Two operations suffice, and each device has its own form of them:

- `average`: softmax(scores) V, with its normaliser. For the student V = C, and it is attention of x over the centroids:
  it holds the value of the loss, logsumexp(scores), and its gradient in x, the average / tau_s. Nothing of it is
  computed a second time in the backward pass.
- `spread`: softmax(scores)^T Y, the transposed product, for the gradient in C: dL/dC = (p_s - p_t)^T x / tau_s. This
  computes scores again, and only for rows that move the centroids.

Scores are float32 (float64 of float64 rows), whatever autocast says: similarities in half precision tie.

Letters: V views, G of them global, B images, R rows, K clusters, D width.
"""

import dataclasses
import importlib.util
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from excb.errors import UserError
from excb.exact import exact_products

Form = Literal["auto", "chunked", "triton", "flex"]


@dataclass(frozen=True)
class Scores:
    """Scores of R rows for K centroids, similarities x . c_k that may be balanced, as what they are computed from."""

    rows: Tensor  # [R, D]
    centroids: Tensor  # [K, D], of the rows' type
    temperature: float  # p = softmax(scores / temperature)
    balance: tuple[Tensor, Tensor] | None = None  # scale [K] and offset [K]: similarity * scale + offset
    bounds: tuple[float, float] | None = None  # then scores are clamped to these
    replaced: tuple[Tensor, Tensor] | None = None  # then one score of each row is replaced: clusters [R], scores [R]


@dataclass(frozen=True)
class Average:
    """Softmax averages of R rows, where p_k = exp((score_k - peak) / temperature) / total."""

    mean: Tensor  # [R, D] sum_k p_k v_k
    peak: Tensor  # [R] max_k score_k
    total: Tensor  # [R] sum_k exp((score_k - peak) / temperature)
    winners: Tensor  # [R] argmax_k score_k, the first of equals; only if asked for
    raw_winners: Tensor  # [R] argmax_k x . c_k, likewise


@dataclass(frozen=True)
class Spread:
    """One term of `spread`: sum_r exp((score_rk - peak_r) / temperature) w_r y_r for every k."""

    scores: Scores
    peak: Tensor  # [R]
    weights: Tensor  # [R] w
    vectors: Tensor  # [R, D] y


class Operations(Protocol):
    """What a form provides."""

    def average(self, scores: Scores, values: Tensor | None, *, winners: bool) -> Average:
        """Average `values` [K, D] by p; without values there is no mean."""

    def spread(self, student: Spread, teacher: Spread) -> Tensor:
        """Sum both terms, [K, D] in the scores' precision. The student spreads its rows; the teacher is balanced."""


# ---------------------------------------------------------------------------------------------------------------------
# Teacher
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assignment:
    """The teacher's assignment of R rows to clusters. Nothing in it has a gradient: see `match`."""

    targets: Tensor  # [R, D] sum_k p_t,k v_k: all that the loss needs of p_t besides the student
    winners: Tensor  # [R] argmax_k of p_t
    raw_winners: Tensor  # [R] argmax_k of z_t, before B
    confidence: Tensor  # [R] max_k of p_t
    scores: Scores  # what p_t can be computed from again ...
    peak: Tensor  # ... with the highest score, [R]; the confidence is the normaliser


@torch.no_grad()
def assign(
    queries: Tensor,
    centroids: Tensor,
    scale: Tensor,
    offset: Tensor,
    values: Tensor,
    *,
    temperature: float,
    winner_gain: float = 1.0,
    clamp: bool = False,
    form: Form = "auto",
) -> Assignment:
    """Assign rows to clusters by balanced similarity (Eq. 3, 4, 6) and average the clusters' values.

    Args:
        queries: unit rows of the teacher, [R, D].
        centroids: unit centroids of the teacher, [K, D].
        scale: of the affine map B per cluster, [K].
        offset: of the affine map B per cluster, [K].
        values: what each cluster stands for, [K, D]: the student's unit centroids.
        temperature: tau_t.
        winner_gain: factor on the winning similarity after B (authors' code: 1.01).
        clamp: clamp similarities to [-1, 1] after B (authors' code: yes).
        form: see `operations`.

    Raises:
        UserError: the form asked for cannot run here.
    """
    run = operations(form, queries)
    # Softmax does not see a constant, so scores are counted from 1. The balanced similarities of small clusters, which
    # crowd below it, then keep their digits.
    scores = Scores(queries, centroids, temperature, balance=(scale, offset - 1))
    bounds = (-2.0, 0.0) if clamp else None
    with exact_products(queries.device):
        if winner_gain != 1:  # one score of each row changes; which one, only a pass over all centroids can tell
            best = run.average(scores, None, winners=True)
            gained = best.peak * winner_gain + (winner_gain - 1)
            replaced = best.winners, gained if bounds is None else gained.clamp(*bounds)
            scores = dataclasses.replace(scores, replaced=replaced)
        scores = dataclasses.replace(scores, bounds=bounds)
        average = run.average(scores, values, winners=True)
    return Assignment(average.mean, average.winners, average.raw_winners, 1 / average.total, scores, average.peak)


# ---------------------------------------------------------------------------------------------------------------------
# Student
# ---------------------------------------------------------------------------------------------------------------------


def match(
    queries: Tensor,
    centroids: Tensor,
    assignment: Assignment,
    pair_weights: Tensor,
    *,
    temperature: float,
    form: Form = "auto",
) -> Tensor:
    """Weighted sum over view pairs of the batch mean of H(p_t, p_s) (the inner sums of Eq. 7).

    Gradients reach queries and centroids, either only where it requires one. The centroids' is that of H as it stands,
    -(p_t)^T log p_s: `assignment` must have averaged these same centroids.

    Args:
        queries: unit rows of the student, [V, B, D].
        centroids: unit centroids of the student, [K, D].
        assignment: of the teacher's G * B rows, view by view.
        pair_weights: weight of every pair (teacher view, student view), [G, V].
        temperature: tau_s.
        form: see `operations`.

    Raises:
        UserError: the form asked for cannot run here.
    """
    pairs = _Pairs(assignment, pair_weights, temperature, operations(form, queries))
    loss: Tensor = _Match.apply(queries, centroids, pairs)
    return loss


@dataclass(frozen=True)
class _Pairs:
    """What `match` takes that has no gradient."""

    assignment: Assignment
    weights: Tensor  # [G, V]
    temperature: float
    run: Operations


class _Match(torch.autograd.Function):
    """`match`, differentiated by hand."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, centroids: Tensor, pairs: _Pairs) -> Tensor:
        (V, B, D), G = queries.shape, len(pairs.weights)
        scores = Scores(queries.flatten(0, 1), centroids, pairs.temperature)
        with exact_products(queries.device):
            average = pairs.run.average(scores, centroids, winners=False)
            targets = pairs.assignment.targets.view(G, B, D)
            weights = pairs.weights.to(targets) / max(1, B)
            pull = torch.einsum("gv,gbd->vbd", weights, targets)
        row_weights = weights.sum(0)[:, None]  # [V, 1]
        log_normaliser = (average.peak / pairs.temperature + average.total.log()).view(V, B)
        slope = (row_weights[..., None] * average.mean.view(V, B, D)).sub_(pull).div_(pairs.temperature)
        given, teacher = pairs.assignment, pairs.assignment.scores
        of_centroids = [queries, centroids, weights, average.peak, average.total, given.peak, given.confidence]
        of_centroids += [teacher.rows, teacher.centroids, *(teacher.balance or ()), *(teacher.replaced or ())]
        ctx.save_for_backward(slope, *(of_centroids if ctx.needs_input_grad[1] else ()))
        ctx.kind, ctx.temperature, ctx.run = queries.dtype, pairs.temperature, pairs.run
        ctx.teacher = teacher.temperature, teacher.bounds
        return (row_weights * log_normaliser - (queries * pull).sum(2) / pairs.temperature).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        slope, *saved = ctx.saved_tensors
        of_queries = (slope * gradient).to(ctx.kind) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return of_queries, None, None
        queries, centroids, weights, peak, total, *saved = saved
        teacher_peak, confidence, teacher_rows, teacher_centroids, scale, offset, *replaced = saved
        temperature, bounds = ctx.teacher
        student = Scores(queries.flatten(0, 1), centroids, ctx.temperature)
        balance = scale, offset
        teacher = Scores(teacher_rows, teacher_centroids, temperature, balance, bounds, tuple(replaced) or None)
        weights = weights * (gradient / ctx.temperature)
        row_weights = weights.sum(0)[:, None].expand(queries.shape[:2]).flatten()
        with exact_products(queries.device):
            matched = -torch.einsum("gv,vbd->gbd", weights, queries.to(weights)).flatten(0, 1)
            of_centroids = ctx.run.spread(
                Spread(student, peak, row_weights / total, student.rows),
                Spread(teacher, teacher_peak, confidence, matched),
            )
        return of_queries, of_centroids.to(centroids.dtype), None


# ---------------------------------------------------------------------------------------------------------------------
# Forms
# ---------------------------------------------------------------------------------------------------------------------


def operations(form: Form, rows: Tensor) -> Operations:
    """Return the form of `average` and `spread` that serves these rows.

    Args:
        form: `chunked` is plain PyTorch and works everywhere; `triton` is our kernels, for bfloat16 on CUDA; `flex` is
            PyTorch's FlexAttention for what it can do and our kernels for the rest; `auto` is `triton` where it can
            run, else `chunked`.
        rows: rows to be scored, [..., D].

    Raises:
        UserError: there is no such form, or it cannot run here.
    """
    if form not in get_args(Form):
        raise UserError(f"there is no form {form!r} of the objective: choose {', '.join(get_args(Form))}")
    obstacle = "" if form == "chunked" else _obstacle(rows)
    if form == "chunked" or (form == "auto" and obstacle):
        from excb.objective import chunked

        return chunked
    if obstacle:
        raise UserError(f"the objective's form {form} {obstacle}: choose chunked, or auto (efficiency.objective)")
    if form == "flex":
        from excb.objective import flex

        return flex
    from excb.objective import triton

    return triton


def _obstacle(rows: Tensor) -> str:
    """Say what keeps our kernels from these rows; nothing: an empty string."""
    if rows.dtype != torch.bfloat16:
        return f"takes bfloat16 rows, not {str(rows.dtype).removeprefix('torch.')} (efficiency.precision=bf16)"
    if rows.shape[-1] > 256:
        return f"takes rows of width 256 at most, not {rows.shape[-1]}"
    if rows.device.type != "cuda":
        return "needs a CUDA device"
    if torch.cuda.get_device_capability(rows.device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or newer"
    return "" if importlib.util.find_spec("triton") else "needs Triton, which is not installed"
