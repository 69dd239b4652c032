"""The loss as `excb.method` calls it: assign the teacher's rows and compare the student, by the backend that fits.

Read `excb.objective.plain` first: it is the loss. `excb.objective.streamed` is the same without matrices of rows x
clusters, by two operations that `chunked` and `triton` implement. The tables are in `excb.objective.table`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from excb.errors import UserError
from excb.exact import similarities
from excb.objective import plain, streamed
from excb.objective.scores import Assignment, Scores
from excb.objective.table import AUTO, BACKENDS, LOSSES


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
    backend: str = AUTO,
) -> Assignment:
    """Assign rows to clusters by balanced similarity (Eq. 3, 4, 6).

    Args:
        queries: unit rows of the teacher, [R, D].
        centroids: unit centroids of the teacher, [K, D].
        scale: of the affine map B per cluster, [K].
        offset: of the affine map B per cluster, [K].
        values: the student's unit centroids, [K, D]. Targets are averages of them.
        temperature: tau_t.
        winner_gain: factor on the winning similarity after B (authors' code: 1.01).
        clamp: clamp similarities to [-1, 1] after B (authors' code: yes).
        backend: see `resolve_backend`.

    Raises:
        UserError: there is no such backend, or it cannot run here.
    """
    name = resolve_backend(backend, queries)
    if name != "plain":
        scores = Scores(queries, centroids, temperature, balance=(scale, offset))
        return streamed.assign(scores, values, _module(name), winner_gain=winner_gain, clamp=clamp)
    z = similarities(queries, centroids)
    balanced = plain.balance(z, scale, offset, winner_gain=winner_gain, clamp=clamp)
    return plain.assign(z, balanced, temperature=temperature)


def cross_entropy(
    queries: Tensor, centroids: Tensor, assignment: Assignment, pair_weights: Tensor, *, temperature: float
) -> Tensor:
    """Weighted sum over view pairs of the batch mean of H(p_t, p_s) (the inner sums of Eq. 7).

    Gradients reach queries and centroids, either only where it requires one. The centroids' is that of H as it stands,
    -(p_t)^T log p_s, with p_t constant: `assign` must have had these same centroids as its `values`.

    Args:
        queries: unit rows of the student, [V, B, D].
        centroids: unit centroids of the student, [K, D].
        assignment: of the teacher's G * B rows, view by view; it decides the backend.
        pair_weights: weight of every pair (teacher view, student view), [G, V].
        temperature: tau_s.
    """
    if isinstance(assignment, streamed.StreamedAssignment):
        return streamed.cross_entropy(queries, centroids, assignment, pair_weights, temperature=temperature)
    assert isinstance(assignment, plain.FullAssignment)
    return plain.cross_entropy(queries, centroids, assignment, pair_weights, temperature=temperature)


def loss_function(name: str) -> Callable[..., Tensor]:
    """The loss of that name, with the signature of `cross_entropy`."""
    function: Callable[..., Tensor] = getattr(import_module(LOSSES[name].module), name)
    return function


def resolve_backend(backend: str, rows: Tensor) -> str:
    """The name of the backend that serves these rows, [..., D].

    Args:
        backend: `plain` holds whole matrices; `chunked` is plain PyTorch in tiles and works everywhere; `triton` is our
            kernels, for CUDA and all types but float64; `auto` is the first of the table that can run: triton, else
            chunked.
        rows: rows to be scored, [..., D].

    Raises:
        UserError: there is no such backend, or it cannot run here.
    """
    if backend == AUTO:
        return next(name for name in BACKENDS if not _obstacle(name, rows))
    if backend not in BACKENDS:
        raise UserError(f"there is no loss backend {backend!r}: choose {', '.join((AUTO, *BACKENDS))}")
    if obstacle := _obstacle(backend, rows):
        raise UserError(f"the loss backend {backend} {obstacle}: choose auto (efficiency.objective)")
    return backend


def _obstacle(name: str, rows: Tensor) -> str:
    """Why a backend cannot score these rows; empty where it can."""
    obstacle = getattr(_module(name), "obstacle", None)
    return str(obstacle(rows)) if obstacle is not None else ""


def _module(name: str) -> Any:
    """The module of a backend, imported on first use."""
    return import_module(BACKENDS[name].module)
