"""torch's five operations of a BatchNorm over ranks for the CPU, where torch has none: same names, same arguments."""

# ruff: noqa: PLR0917 - torch's signatures

import torch
from torch import Tensor


def batch_norm_stats(rows: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse standard deviation [C] of each channel of [R, C, ...], at least in float32."""
    wide, others = _wide(rows), _others(rows)
    mean = wide.mean(others)  # torch's own BatchNorm on CPUs adds up with less care: 2e-6 off for 4,096 rows
    variance = (wide - _channels(mean, rows)).square_().mean(others)
    return mean, torch.rsqrt(variance + eps)


def batch_norm_gather_stats_with_counts(
    _like: Tensor,
    means: Tensor,
    invstds: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Merge the statistics [W, C] of W ranks with `counts` [W] values a channel each; update the running ones in place.

    Raises:
        ValueError: all ranks together have one value per channel, as torch raises for one process.
    """
    total = counts.sum()
    if round(float(total)) == 1:
        raise ValueError("expected more than 1 value per channel")
    weights = (counts / total)[:, None]
    mean = (weights * means).sum(0)
    variance = (weights * (invstds**-2 - eps + (means - mean).square())).sum(0)
    if running_mean is not None and running_var is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        running_var.lerp_((variance * (total / (total - 1))).to(running_var.dtype), momentum)
    return mean, torch.rsqrt(variance + eps)


def batch_norm_elemt(
    rows: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, _eps: float
) -> Tensor:
    """Normalise [R, C, ...] with these statistics, then scale and shift it."""
    scale = invstd if weight is None else invstd * weight
    # Subtracted first: a shift by mean x scale would lose digits where the mean is large.
    normal = (_wide(rows) - _channels(mean, rows)).mul_(_channels(scale, rows))
    return (normal if bias is None else normal.add_(_channels(bias, rows))).to(rows.dtype)


def batch_norm_backward_reduce(
    grad: Tensor,
    rows: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    _rows_needed: bool,
    weight_needed: bool,
    _bias_needed: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Sums [C] over this rank's rows, of the gradient and of gradient x (rows - mean); gradients of weight and bias."""
    wide, others = _wide(grad), _others(rows)
    sum_dy = wide.sum(others)
    sum_dy_xmu = (_wide(rows) - _channels(mean, rows)).mul_(wide).sum(others)
    if weight is None or not weight_needed:
        return sum_dy, sum_dy_xmu, None, None
    return sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(weight.dtype), sum_dy.to(weight.dtype, copy=True)


def batch_norm_backward_elemt(
    grad: Tensor,
    rows: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    counts: Tensor,
) -> Tensor:
    """Gradient of [R, C, ...], from the two sums over all ranks, with `counts` [W] values a channel."""
    total = counts.sum()
    scale = invstd if weight is None else invstd * weight
    slope = sum_dy_xmu / total * invstd.square()
    result = (_wide(rows) - _channels(mean, rows)).mul_(_channels(-slope, rows)).add_(_wide(grad))
    return result.sub_(_channels(sum_dy / total, rows)).mul_(_channels(scale, rows)).to(rows.dtype)


def _wide(rows: Tensor) -> Tensor:
    return rows if rows.dtype == torch.float64 else rows.float()


def _others(rows: Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [dimension for dimension in range(rows.ndim) if dimension != 1]


def _channels(values: Tensor, rows: Tensor) -> Tensor:
    """[C] as [1, C, 1, ...], to go with `rows`."""
    return values.view([1, -1] + [1] * (rows.ndim - 2))
