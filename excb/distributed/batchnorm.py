"""BatchNorm whose statistics span all ranks, on any device that has collectives."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from excb.distributed.collectives import mean_over_ranks, world_size


def synchronise_batchnorm(model: nn.Module, device: torch.device) -> nn.Module:
    """Make every BatchNorm of a model take its statistics over all ranks. Names and values of its state stay the same.

    GPUs get torch's SyncBatchNorm layers (timm's version where an activation follows inside the layer). torch has none
    for the CPU, which gets our `SyncBatchNorm`.
    """
    if world_size() == 1:
        return model
    if device.type == "cuda":
        from timm.layers import convert_sync_batchnorm

        converted: nn.Module = convert_sync_batchnorm(model)
        return converted
    for name, child in model.named_children():
        if isinstance(child, _BatchNorm):
            setattr(model, name, SyncBatchNorm(child))
        else:
            synchronise_batchnorm(child, device)
    return model


class MeanOverRanks(torch.autograd.Function):
    """The mean over all ranks. It is linear and symmetric, so its backward pass is the same mean."""

    @staticmethod
    def forward(_context: Any, value: Tensor) -> Tensor:
        """Return the mean of `value`, any shape, over all ranks."""
        return mean_over_ranks(value.clone())

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> Tensor:
        """Return the mean of the gradient over all ranks."""
        return mean_over_ranks(gradients[0].clone())


class SyncBatchNorm(_BatchNorm):
    """BatchNorm with statistics over all ranks, which hold equally many rows, on any device that has collectives.

    The variance is the mean squared deviation from the mean over all ranks, not a difference of large numbers.

    Args:
        source: the layer to replace. Its parameters, buffers and, in timm's layers, dropout and activation are kept.
    """

    def __init__(self, source: _BatchNorm) -> None:
        super().__init__(source.num_features, source.eps, source.momentum, source.affine, source.track_running_stats)
        for name, parameter in source.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
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
        if not self.training:
            return F.batch_norm(rows, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        reduced = [dimension for dimension in range(rows.ndim) if dimension != 1]
        shape = [1, -1] + [1] * (rows.ndim - 2)
        wide = rows if rows.dtype == torch.float64 else rows.float()
        mean: Tensor = MeanOverRanks.apply(wide.mean(reduced))
        deviations = wide - mean.view(shape)
        variance: Tensor = MeanOverRanks.apply(deviations.square().mean(reduced))
        if self.track_running_stats:
            self._update_running(mean.detach(), variance.detach(), rows.numel() // rows.shape[1] * world_size())
        scale = torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        normal = deviations * scale.view(shape)
        return (normal if self.bias is None else normal + self.bias.view(shape)).to(rows.dtype)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Update the running statistics, with the unbiased variance as torch does."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        weight = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_((variance * (count / max(1, count - 1))).to(self.running_var.dtype), weight)
