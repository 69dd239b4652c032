"""Drop path whose choices belong to samples, not to their place in a batch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from excb import seeding


class SampleDropPath(nn.Module):
    """Stochastic depth (Huang et al., 2016) that drops a residual branch by (seed, epoch, sample, view, layer)."""

    def __init__(self, rate: float, layer: int) -> None:
        super().__init__()
        self.rate, self.layer = rate, layer
        self.row_keys: Tensor | None = None

    def forward(self, branch: Tensor) -> Tensor:
        """Zero whole rows of a residual branch [R, ...] and scale the others by 1 / (1 - rate)."""
        if not self.training or self.rate == 0:
            return branch
        if self.row_keys is None:
            raise RuntimeError("a training pass through drop path needs `drop_path_keys`")
        draws = seeding.uniform(self.row_keys, torch.full_like(self.row_keys, self.layer))
        keep = (draws >= self.rate).to(branch.dtype) / (1 - self.rate)
        return branch * keep.view(-1, *[1] * (branch.ndim - 1))


def seed_drop_path(backbone: nn.Module, *, wanted: bool) -> nn.Module:
    """Replace timm's DropPath layers, which draw from a global generator, by `SampleDropPath`.

    Args:
        backbone: of timm.
        wanted: whether anybody asked for drop path; some networks have it by default, and then it is off.
    """
    from timm.layers import DropPath

    layers = [
        (parent, name, child)
        for parent in backbone.modules()
        for name, child in parent.named_children()
        if isinstance(child, DropPath)
    ]
    for layer, (parent, name, child) in enumerate(layers):
        setattr(parent, name, SampleDropPath(float(child.drop_prob or 0.0) if wanted else 0.0, layer))
    return backbone


@contextmanager
def drop_path_keys(backbone: nn.Module, sample_keys: Tensor | None, views: Sequence[int]) -> Iterator[None]:
    """Name the rows of the next forward pass, view by view, for drop path.

    Args:
        backbone: a backbone that `Architecture.build` made.
        sample_keys: folded (seed, epoch, sample) of every image, [B], or None where there is no drop path.
        views: indices of the views in the batch, in order.
    """
    layers = [module for module in backbone.modules() if isinstance(module, SampleDropPath)]
    if layers and sample_keys is not None:
        rows = torch.cat([seeding.fold_tensor(sample_keys, torch.full_like(sample_keys, view)) for view in views])
        for layer in layers:
            layer.row_keys = rows
    try:
        yield
    finally:
        for layer in layers:
            layer.row_keys = None
