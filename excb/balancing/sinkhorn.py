"""SwAV's Sinkhorn-Knopp: a few alternating normalisations of the batch towards equal shares.

Caron et al., "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments" (NeurIPS 2020), Eq. 3 to 5:
the assignment that maximises Tr(Q^T z) + eps H(Q) among those that give every cluster R/K samples is
Q = Diag(v) exp(z / eps) Diag(u). Their algorithm normalises clusters (to 1/K each) and samples (to 1/R each) in turn,
three times, samples last. After it

    Q_rk / sum_j Q_rj = softmax_k(z_rk / eps + log u_k),

an affine map per cluster with eps = tau_t: scale 1, offset eps log u. Normalising the clusters of an assignment whose
samples are normalised divides u_k by the cluster's share relative to 1/K, so that one iteration is

    log u_k <- log u_k - log(K mean_r softmax_k(z_rk / eps + log u_k)),

except the first, which starts from exp(z / eps) with samples not yet normalised.

All global views of the batch, on all processes, are normalised together. (SwAV's code takes one view at a time and adds
a queue of earlier samples where batches are small. Neither is here.)
"""

import torch
from torch import Tensor

from excb.balancing.interface import Balancer, TeacherBatch
from excb.balancing.shares import log_relative_shares


class SinkhornKnopp(Balancer):
    """Balance each batch on its own.

    Args:
        temperature: eps, the assignment's temperature tau_t.
        iterations: how often clusters and samples are normalised; 0: no balancing.
    """

    def __init__(self, temperature: float, iterations: int) -> None:
        super().__init__()
        self._temperature, self._iterations = temperature, iterations
        self.passes, self.exchanges = iterations, 2 * iterations  # a sum of logarithms is a maximum and a sum

    def affine(self, batch: TeacherBatch) -> tuple[Tensor, Tensor]:
        """Return scale 1 and offset eps log u."""
        potential = torch.zeros_like(batch.sizes)
        for iteration in range(self._iterations):
            potential -= log_relative_shares(batch, 1 / self._temperature, potential, normalised=iteration > 0)
        return torch.ones_like(potential), self._temperature * potential
