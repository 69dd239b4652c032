"""BatchNorm whose statistics span all ranks. No pass of it waits for the GPU or breaks the graph of torch.compile.

torch's SyncBatchNorm drops ranks without rows by a boolean mask, for whose size the host waits. Here such a rank has a
negligible weight instead. The operations are torch's own: those of `torch` on GPUs, of `cpu_batchnorm` on CPUs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from excb.distributed import cpu_batchnorm
from excb.distributed.collectives import gather_rows, sum_over_ranks, world_size

NO_ROWS = 1e-30  # the count of a rank without rows: a count of zero would make 0 / 0 of the first rank's average


def synchronise_batchnorm(model: nn.Module) -> nn.Module:
    """Make every BatchNorm of a model take its statistics over all ranks. Names and values of its state stay the same.

    Ranks may hold different numbers of rows, and some none. A model of one process is left as it is.

    Returns:
        The model, changed in place; a new layer where the model itself is a BatchNorm.
    """
    if world_size() == 1:
        return model
    if isinstance(model, _BatchNorm):
        return SyncBatchNorm(model)
    for name, child in model.named_children():
        setattr(model, name, synchronise_batchnorm(child))
    return model


class SyncBatchNorm(_BatchNorm):
    """BatchNorm with statistics over all ranks, on CPUs and GPUs.

    Values, gradients and running statistics are those of one BatchNorm over the rows of all ranks. Gradients of weight
    and bias are of this rank's rows. A forward pass gathers once, and a backward pass sums over ranks once.

    Args:
        source: the layer to replace. Its parameters, buffers and, in timm's layers, dropout and activation are kept.
    """

    def __init__(self, source: _BatchNorm) -> None:
        super().__init__(source.num_features, source.eps, source.momentum, source.affine, source.track_running_stats)
        self.weight, self.bias = source.weight, source.bias
        for name, buffer in source.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        self.train(source.training)
        self.drop, self.act = getattr(source, "drop", None), getattr(source, "act", None)  # of timm's BatchNormAct2d

    def _check_input_dim(self, _rows: Tensor) -> None:
        """Accept any number of dimensions from two on."""

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise [R, C, ...] per channel, then apply the layer's dropout and activation."""
        rows = self._normalise(rows)
        for layer in (self.drop, self.act):
            rows = layer(rows) if layer is not None else rows
        return rows

    def _normalise(self, rows: Tensor) -> Tensor:
        mean, variance = self.running_mean, self.running_var
        if not self.training:  # layers without running statistics use those of this rank's rows, as torch's do
            return F.batch_norm(rows, mean, variance, self.weight, self.bias, mean is None, 0.0, self.eps)
        rows = rows.contiguous(memory_format=_memory_format(rows))
        if not self.track_running_stats or mean is None or variance is None:
            statistics = _statistics(rows.detach(), None, None, 0.0, self.eps)
        else:
            statistics = self._track(rows.detach(), mean, variance)
        normal: Tensor = _Normalise.apply(rows, self.weight, self.bias, *statistics)
        return normal

    def _track(self, rows: Tensor, mean: Tensor, variance: Tensor) -> Sequence[Tensor]:
        """Compute the statistics of the rows, and move the running ones towards them."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        if self.momentum is not None:
            return _statistics(rows, mean, variance, self.momentum, self.eps)
        # An average over all batches: its weight is on the device, and the operation takes one from the host.
        batch = torch.zeros_like(mean), torch.zeros_like(variance)
        statistics = _statistics(rows, *batch, 1.0, self.eps)
        weight = self.num_batches_tracked.to(mean.dtype).reciprocal()
        mean.lerp_(batch[0], weight)
        variance.lerp_(batch[1], weight)
        return statistics


class _Normalise(torch.autograd.Function):
    """Normalise with the statistics over all ranks, whose own dependence on the rows is part of the gradient."""

    @staticmethod
    def forward(context: Any, rows: Tensor, weight: Tensor | None, bias: Tensor | None, *statistics: Tensor) -> Tensor:
        """Normalise [R, C, ...] with what `gather_statistics` returned, then scale and shift it by [C]."""
        context.save_for_backward(rows, weight, *statistics)
        mean, invstd, _counts = statistics
        normal: Tensor = torch.ops.excb.batchnorm_normalise(rows, mean, invstd, weight=weight, bias=bias)
        return normal

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of rows, weight and bias; the statistics have none of their own."""
        rows, weight, mean, invstd, counts = context.saved_tensors
        needed = context.needs_input_grad[:3]
        found = torch.ops.excb.batchnorm_gradients(
            gradients[0], rows, mean, invstd, counts, weight=weight, rows_needed=needed[0]
        )
        return *(one if need else None for one, need in zip(found, needed, strict=True)), None, None, None


def _statistics(
    rows: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float, eps: float
) -> Sequence[Tensor]:
    """Mean, inverse standard deviation [C] and counts [W] over all ranks: `gather_statistics` as an operator."""
    statistics: Sequence[Tensor] = torch.ops.excb.batchnorm_statistics(rows, running_mean, running_var, momentum, eps)
    return statistics


# ---------------------------------------------------------------------------------------------------------------------
# The operators. torch.compile calls them as they are, so that it needs no derivative and no shape of what is in them.
# ---------------------------------------------------------------------------------------------------------------------


def gather_statistics(
    rows: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Statistics over the rows of all ranks.

    Args:
        rows: [R, C, ...] of this rank, dense in one of torch's memory formats; R may be 0.
        running_mean: [C], moved by `momentum` towards the mean, in place; None where none is kept.
        running_var: [C], towards the unbiased variance.
        momentum: from 0 to 1.
        eps: of the layer.

    Returns:
        Mean and inverse standard deviation [C], in float32 or wider; and every rank's values a channel [W] int32.
    """
    native, channels = _native(rows), rows.shape[1]
    if rows.numel():
        mean, invstd = native.batch_norm_stats(rows, eps)
    else:
        wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
        mean, invstd = rows.new_zeros(channels, dtype=wide), rows.new_ones(channels, dtype=wide)
    count = mean.new_full((1,), rows.numel() // channels or NO_ROWS)
    gathered = gather_rows(torch.cat([mean, invstd, count])[None])
    means, invstds, counts = gathered.split([channels, channels, 1], dim=1)
    counts = counts.flatten()
    # The operation's first argument says only in what type the counts are where no running statistics are given.
    mean, invstd = native.batch_norm_gather_stats_with_counts(
        means, means, invstds, running_mean, running_var, momentum, eps, counts
    )
    if running_var is not None:
        running_var.clamp_(min=0)  # 1 / invstd^2 - eps of a constant channel may be rounded to less
    return mean, invstd, counts.int()


def normalise(rows: Tensor, mean: Tensor, invstd: Tensor, *, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Normalise [R, C, ...] with given statistics [C], then scale and shift it; type and memory format stay."""
    if not rows.numel():
        return torch.empty_like(rows)
    eps = 0.0  # an argument without effect: it is in `invstd`
    normal: Tensor = _native(rows).batch_norm_elemt(rows, weight, bias, mean, invstd, eps)
    return normal


def gradients(
    grad: Tensor,
    rows: Tensor,
    mean: Tensor,
    invstd: Tensor,
    counts: Tensor,
    *,
    weight: Tensor | None,
    rows_needed: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of rows, weight and bias.

    Args:
        grad: of the normalised rows, of their shape.
        rows: [R, C, ...], what was normalised.
        mean: [C] over all ranks, from `gather_statistics`, as the next two.
        invstd: [C].
        counts: [W] int32.
        weight: [C], of a layer that learns weight and bias, else None.
        rows_needed: whether the gradient of the rows is wanted, for which ranks exchange sums.

    Returns:
        The gradient of the rows, to which all ranks' gradients contribute, and those of weight and bias, from this
        rank's rows. What is not wanted is empty.
    """
    native, learned, channels = _native(rows), weight is not None, len(mean)
    if rows.numel():
        grad = grad.contiguous(memory_format=_memory_format(rows))
        sum_dy, sum_dy_xmu, of_weight, of_bias = native.batch_norm_backward_reduce(
            grad, rows, mean, invstd, weight, rows_needed, learned, learned
        )
    else:
        sum_dy, sum_dy_xmu = torch.zeros_like(mean), torch.zeros_like(mean)
        of_weight, of_bias = (None, None) if weight is None else (torch.zeros_like(weight), torch.zeros_like(weight))
    of_rows = None
    if rows_needed:
        sums = sum_over_ranks(torch.cat([sum_dy, sum_dy_xmu])).split(channels)
        if rows.numel():
            of_rows = native.batch_norm_backward_elemt(grad, rows, mean, invstd, weight, *sums, counts)
        else:
            of_rows = torch.empty_like(rows)
    return _or_empty(of_rows, rows), _or_empty(of_weight, rows), _or_empty(of_bias, rows)


def _native(rows: Tensor) -> Any:
    """Where the operations of this device are."""
    return torch if rows.is_cuda else cpu_batchnorm


def _memory_format(rows: Tensor) -> torch.memory_format:
    """The format that the operations take: the one that the rows have, or will have if they are in neither."""
    channels_last = rows.ndim == 4 and rows.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if channels_last else torch.contiguous_format


def _or_empty(value: Tensor | None, like: Tensor) -> Tensor:
    return like.new_empty(0) if value is None else value


def _operator(
    name: str, compute: Callable[..., Any], shapes: Callable[..., Any], *, mutates: Sequence[str] = ()
) -> None:
    """Make a function known to torch.compile and to fake tensors, as `torch.ops.excb.NAME`.

    `torch.library.custom_op` would do, at five times the cost of a call.
    """
    schema = torch.library.infer_schema(compute, mutates_args=mutates)
    torch.library.define(f"excb::{name}", schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(f"excb::{name}", "default", compute)
    torch.library.register_fake(f"excb::{name}", shapes)


def _statistics_shapes(rows: Tensor, *_others: Any) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
    mean, counts = rows.new_empty(rows.shape[1], dtype=wide), rows.new_empty(world_size(), dtype=torch.int32)
    return mean, torch.empty_like(mean), counts


def _gradient_shapes(
    _grad: Tensor, rows: Tensor, *_statistics: Tensor, weight: Tensor | None, rows_needed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    learned = [rows.new_empty(0) if weight is None else torch.empty_like(weight) for _ in range(2)]
    return torch.empty_like(rows) if rows_needed else rows.new_empty(0), learned[0], learned[1]


_operator("batchnorm_statistics", gather_statistics, _statistics_shapes, mutates=("running_mean", "running_var"))
_operator("batchnorm_normalise", normalise, lambda rows, *_statistics, **_learned: torch.empty_like(rows))
_operator("batchnorm_gradients", gradients, _gradient_shapes)
