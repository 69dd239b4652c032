"""MIRA's assignment: mutual information with the batch against closeness to the softmax.

Lee et al., "Unsupervised Visual Representation Learning via Mutual Information Regularized Assignment" (NeurIPS 2022).
Of the model's probabilities p_r = softmax(z_r / tau_t) it makes the assignment w that minimises, beta in [0, 1),

    mean_r KL(w_r || p_r) - beta I(w),   I(w) = H(m) - mean_r H(w_r),   m_k = mean_r w_rk.

Written out, this is mean_r sum_k ((1 - beta) w log w - w log p) + beta sum_k m log m, which is strictly convex. With a
multiplier for sum_k w_rk = 1, its derivative vanishes where (1 - beta) log w_rk = log p_rk - beta log m_k + constant_r:

    w_rk ~ p_rk^(1 / (1 - beta)) m_k^(-beta / (1 - beta)) ~ exp(z_rk / (tau_t (1 - beta)) + a_k),
    a_k = -beta / (1 - beta) log m_k.

That is an affine map per cluster: scale 1 / (1 - beta), offset tau_t a. That m is the mean of this w is an equation for
m. Its left side is brought to m = (m^(beta / (1 - beta)) mean_r w_r)^(1 - beta), where the right side holds m only in
the rows' normalisers; iterated, this is the paper's fixed-point iteration, which it proves to converge. In a it reads

    a_k <- beta (a_k - log(mean_r softmax_k(z_rk / (tau_t (1 - beta)) + a_k))).

A constant in a cancels, so shares are taken relative to 1/K. The step is Sinkhorn-Knopp's but for the factor beta:
beta -> 1 forces equal shares, a smaller one lets them differ where the batch asks for it. The iteration starts at
m = 1, that is a = 0, and its first step is not counted, as published. MIRA takes each view by itself at tau_t = 0.225;
here all global views of the batch, on all processes, are taken together.
"""

import torch
from torch import Tensor

from excb.balancing.interface import Balancer, TeacherBatch
from excb.balancing.shares import log_relative_shares


class MIRA(Balancer):
    """Balances a batch by itself.

    Args:
        temperature: tau_t of p; the assignment itself is sharper, as if at tau_t (1 - beta).
        beta: weight of the mutual information; 0: no balancing.
        iterations: steps of the fixed-point iteration after the first.
    """

    def __init__(self, temperature: float, beta: float, iterations: int) -> None:
        super().__init__()
        self._temperature, self._beta, self._iterations = temperature, beta, iterations

    def affine(self, batch: TeacherBatch) -> tuple[Tensor, Tensor]:
        """Return scale 1 / (1 - beta) and offset tau_t a."""
        scale = 1 / (1 - self._beta)
        potential = torch.zeros_like(batch.sizes)
        for _ in range(1 + self._iterations):
            shares = log_relative_shares(batch, scale / self._temperature, potential)
            potential = self._beta * (potential - shares)
        return torch.full_like(potential, scale), self._temperature * potential
