"""MIRA's assignment: a trade of mutual information with the batch against closeness to the softmax.

Lee et al., "Unsupervised Visual Representation Learning via Mutual Information Regularized Assignment" (NeurIPS 2022).
From the model's probabilities p_r = softmax(z_r / tau_t) it finds the assignment w that minimises, beta in [0, 1),

    mean_r KL(w_r || p_r) - beta I(w),   I(w) = H(m) - mean_r H(w_r),   m_k = mean_r w_rk.

Written out, this is mean_r sum_k ((1 - beta) w log w - w log p) + beta sum_k m log m, which is strictly convex. With a
multiplier for sum_k w_rk = 1, its derivative vanishes where (1 - beta) log w_rk = log p_rk - beta log m_k + constant_r:

    w_rk ~ p_rk^(1 / (1 - beta)) m_k^(-beta / (1 - beta)) ~ exp(z_rk / (tau_t (1 - beta)) + a_k),
    a_k = -beta / (1 - beta) log m_k.

This is an affine map per cluster: scale 1 / (1 - beta), offset tau_t a. Because m is the mean of w, this is an equation
for m. It can be written as m = (m^(beta / (1 - beta)) mean_r w_r)^(1 - beta), where the right side holds m only in
the rows' normalisers. Iterated, this is the paper's fixed-point iteration, which it proves to converge. For a it reads

    a_k <- beta (a_k - log(mean_r softmax_k(z_rk / (tau_t (1 - beta)) + a_k))).

A constant in a cancels, so shares are relative to 1/K. The step is Sinkhorn-Knopp's except for the factor beta:
beta -> 1 forces equal shares, a smaller beta lets them differ. The iteration starts at m = 1, which is a = 0, and its
first step is not counted, as published. MIRA balances each view separately at tau_t = 0.225. Here all global views of
the batch, on all processes, are balanced together.

The paper states beta = 2/3. Its authors' code (movinghoon/MIRA at 2a62538, train.py, `beta_momentum`) moves beta on
half a cosine over the run, from 0.75 to 2/3.
"""

import math

import torch
from torch import Tensor

from excb.balancing.interface import Balancer, TeacherBatch
from excb.balancing.shares import log_relative_shares


class MIRA(Balancer):
    """Balance each batch on its own.

    Args:
        temperature: tau_t of p; the assignment itself is sharper, as if at tau_t (1 - beta).
        beta: weight of the mutual information; 0: no balancing.
        iterations: steps of the fixed-point iteration after the first.
        first_beta: from which beta moves on half a cosine over the run; None: it does not move.
    """

    def __init__(self, temperature: float, beta: float, iterations: int, first_beta: float | None = None) -> None:
        super().__init__()
        self._temperature, self._iterations = temperature, iterations
        self._first, self._last = beta if first_beta is None else first_beta, beta
        self._beta = self._first
        self.passes = 1 + iterations
        self.exchanges = 2 * self.passes  # a sum of logarithms is a maximum and a sum

    def set_progress(self, progress: float) -> None:
        """Move beta."""
        self._beta = self._last + (self._first - self._last) * (1 + math.cos(math.pi * progress)) / 2

    def affine(self, batch: TeacherBatch) -> tuple[Tensor, Tensor]:
        """Return scale 1 / (1 - beta) and offset tau_t a."""
        scale = 1 / (1 - self._beta)
        potential = torch.zeros_like(batch.sizes)
        for _ in range(1 + self._iterations):
            shares = log_relative_shares(batch, scale / self._temperature, potential)
            potential = self._beta * (potential - shares)
        return torch.full_like(potential, scale), self._temperature * potential
