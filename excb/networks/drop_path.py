"""Drop path that depends on the sample, not on its place in a batch."""

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

    Unless drop path is `wanted`, its rate becomes 0 in networks that have it by default.
    """
    from timm.layers import DropPath

    places = [(parent, name) for parent in backbone.modules() for name, _ in parent.named_children()]
    places = [(parent, name) for parent, name in places if isinstance(getattr(parent, name), DropPath)]
    for layer, (parent, name) in enumerate(places):
        rate = float(getattr(parent, name).drop_prob or 0.0) if wanted else 0.0
        setattr(parent, name, SampleDropPath(rate, layer))
    return backbone


@contextmanager
def drop_path_keys(backbone: nn.Module, sample_keys: Tensor | None, views: Sequence[int]) -> Iterator[None]:
    """Set drop path's RNG keys of the rows of the next forward pass, view by view.

    Args:
        backbone: a backbone from `Architecture.build`.
        sample_keys: folded (seed, epoch, sample) of every image, [B], or None without drop path.
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
