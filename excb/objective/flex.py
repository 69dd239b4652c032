"""The operations of `excb.objective.loss` with PyTorch's FlexAttention, for what it can do: the student's averages.

FlexAttention returns neither winners nor the transposed product, and would differentiate in keys that are constant: it
is called without gradients, and the kernels of `excb.objective.triton` do the rest. One head and few rows would leave
most of a GPU idle, so groups of centroids pose as heads and are merged by their logsumexp, which is exact.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from excb.objective import triton
from excb.objective.loss import Average, Scores

_GROUPS = 16  # at most

spread = triton.spread


def average(scores: Scores, values: Tensor | None, *, winners: bool) -> Average:
    """Average `values` by softmax(scores): see `excb.objective.loss.Operations`."""
    if winners or values is not scores.centroids or scores.balance is not None:
        return triton.average(scores, values, winners=winners)
    (R, D), K = scores.rows.shape, len(values)
    groups = next(groups for groups in range(min(K, _GROUPS), 0, -1) if K % groups == 0)
    heads = values.reshape(1, groups, K // groups, D)
    mean, logsumexp = _attention(heads.device.type)(scores.rows.expand(1, groups, R, D), heads, 1 / scores.temperature)
    shares = logsumexp[0].softmax(0)  # [groups, R]
    merged = torch.einsum("gr,grd->rd", shares, mean[0].to(shares))
    none = torch.empty(0, dtype=torch.int64, device=merged.device)
    return Average(merged, logsumexp[0].logsumexp(0) * scores.temperature, torch.ones_like(shares[0]), none, none)


@functools.cache
def _attention(device: str) -> Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]:
    """Attention over keys that are their own values, with its logsumexp."""

    def attention(queries: Tensor, keys: Tensor, scale: float) -> Any:
        if not hasattr(flex, "AuxRequest"):  # where it is, `return_lse` warns
            return flex.flex_attention(queries, keys, keys, scale=scale, return_lse=True)
        mean, extra = flex.flex_attention(queries, keys, keys, scale=scale, return_aux=flex.AuxRequest(lse=True))
        return mean, extra.lse

    return torch.compile(attention, dynamic=False) if device == "cuda" else attention
