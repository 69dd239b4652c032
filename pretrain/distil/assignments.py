"""The student predicts which cluster of the teacher's features an image is in; ExCB's s and B balance the clusters."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from excb.console import plural
from excb.errors import require
from excb.method import balancing, batch_sizes, spherical_kmeans, unit
from excb.objective.loss import assign, cross_entropy

from .interface import Objective
from .settings import DistilSettings


class Assignments(Objective):
    """Cross-entropy of ExCB's balanced assignments (Eq. 3 to 10) of frozen features and the student's.

    The centroids C are those of spherical k-means of the teacher's features, and stay. p_t = softmax(B(t . c_k; s) /
    tau_t) and p_s = softmax(s . c_k / tau_s): the student meets the teacher's own centroids, in the teacher's space.
    """

    centroids: Tensor
    sizes: Tensor

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        clusters = self.settings.clusters
        self.register_buffer("centroids", F.normalize(torch.randn(clusters, self.width), dim=1))
        self.register_buffer("sizes", torch.full((clusters,), 1 / clusters))

    @staticmethod
    def chance(settings: DistilSettings, batch: int) -> float:
        """The cross-entropy of a student that tells no two clusters apart, ln K."""
        del batch
        return math.log(settings.clusters)

    def start(self, samples: Tensor, *, seed: int) -> None:
        """Start the centroids. Raises UserError for fewer samples than clusters."""
        settings = self.settings
        require(
            len(samples) >= settings.clusters,
            f"distil.assignments needs at least as many images as clusters, but teachers see {len(samples)} for "
            f"{plural(settings.clusters, 'cluster')}: lower distil.clusters to at most {len(samples)}",
        )
        means = spherical_kmeans(samples, settings.clusters, iterations=settings.kmeans_iterations, seed=seed)
        self.centroids.copy_(unit(means))

    def forward(self, predicted: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """See `Objective.forward`."""
        settings, centroids = self.settings, self.centroids.to(targets)
        assignment = assign(
            targets.flatten(0, 1),
            centroids,
            *balancing(self.sizes),
            centroids,
            temperature=settings.temperature,
        )
        loss = cross_entropy(
            F.normalize(predicted, dim=-1), centroids, assignment, weights, temperature=settings.student_temperature
        )
        return loss, assignment.winners.unflatten(0, targets.shape[:2]).T

    def update(self, pending: Tensor) -> None:
        """Eq. 9: s = m_s s + (1 - m_s) s_B, of the assignments after B."""
        share = batch_sizes(pending, len(self.sizes), self.sizes.dtype)
        self.sizes.lerp_(share, 1 - self.settings.sizes_momentum)


OBJECTIVE = Assignments
