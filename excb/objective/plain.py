"""The loss as the paper prints it, Eq. 3 to 7 on whole matrices of rows x clusters. Read this file first.

It is plain PyTorch that autograd differentiates: the reference of all other backends, and the way for whatever they
cannot do. A balancer that is not affine per cluster and a loss that is not the cross-entropy need no other file.

Letters: V views, G of them global, B images, R = G B rows of the teacher, K clusters, D width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from excb.exact import exact_products, similarities
from excb.objective import scores


@dataclass(frozen=True, kw_only=True)
class FullAssignment(scores.Assignment):
    """An assignment with its whole matrix."""

    probabilities: Tensor  # [R, K] p_t


def balance(z: Tensor, scale: Tensor, offset: Tensor, *, winner_gain: float = 1.0, clamp: bool = False) -> Tensor:
    """Eq. 4: z^B = B(z; s) as an affine map per cluster, with the authors' two extras: [R, K] -> [R, K], float64.

    The balanced similarities of small clusters crowd just below 1, where float32 would make them equal.
    """
    z = scale.double() * z.double() + offset.double()
    if winner_gain != 1:
        winner = z.argmax(1, keepdim=True)
        z = z.scatter(1, winner, winner_gain * z.gather(1, winner))
    return z.clamp(-1, 1) if clamp else z


def assign(z: Tensor, balanced: Tensor, *, temperature: float) -> FullAssignment:
    """Eq. 6: p_t = softmax(z^B / tau_t), of similarities [R, K] and balanced similarities [R, K]."""
    return assignment_of(torch.softmax(balanced / temperature, 1), z)


def assignment_of(probabilities: Tensor, z: Tensor) -> FullAssignment:
    """The assignment of any p_t [R, K], and of the similarities z [R, K] that it was made of."""
    confidence, winners = probabilities.max(1)
    return FullAssignment(
        winners=winners,
        raw_winners=z.argmax(1),
        confidence=confidence.to(z.dtype),
        probabilities=probabilities.to(z.dtype),
    )


def cross_entropy(
    queries: Tensor, centroids: Tensor, assignment: FullAssignment, pair_weights: Tensor, *, temperature: float
) -> Tensor:
    """Eq. 5 and 7: the weighted sum over pairs of views of the mean over images of H(p_t, p_s) = -p_t . log p_s.

    Args:
        queries: unit rows of the student, [V, B, D].
        centroids: unit centroids of the student, [K, D].
        assignment: of the teacher's G * B rows, view by view.
        pair_weights: weight of every pair (teacher view, student view), [G, V].
        temperature: tau_s.
    """
    p_t = assignment.probabilities.unflatten(0, (len(pair_weights), -1))  # [G, B, K]
    with exact_products(queries.device):
        log_p_s = torch.log_softmax(similarities(queries, centroids) / temperature, -1)  # [V, B, K]
        entropies = -torch.einsum("gbk,vbk->gvb", p_t, log_p_s)
    return (pair_weights.to(entropies) * entropies.mean(2)).sum()
