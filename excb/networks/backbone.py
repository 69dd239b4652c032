"""Built backbones, images [B, 3, H, W] -> features [B, width]: width, modes, drop path, checkpointing."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from excb import seeding
from excb.errors import UserError
from excb.networks.architecture import REFUSALS, first_line


def feature_width(backbone: nn.Module) -> int:
    """Width of the features that a built backbone returns."""
    return int(getattr(backbone, "head_hidden_size", None) or backbone.num_features)  # type: ignore[arg-type]


def weights_hash(weights: nn.Module | Mapping[str, Tensor]) -> str:
    """SHA-256 of every tensor of a state: name, type, shape and bytes. Results name their weights so."""
    tensors = weights.state_dict() if isinstance(weights, nn.Module) else weights
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def has_batchnorm(backbone: nn.Module) -> bool:
    """Whether any layer of the backbone is a BatchNorm."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in backbone.modules())


@contextmanager
def evaluating(backbone: nn.Module) -> Iterator[None]:
    """Put a backbone into eval mode for a while; afterwards each of its modules is in the mode it was in."""
    modes = [(module, module.training) for module in backbone.modules()]
    backbone.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def uncompiled(module: nn.Module) -> AbstractContextManager[None]:
    """Pass a compiled module's calls by its graphs, which know the shapes of training only."""
    if getattr(module, "_compiled_call_impl", None) is None:
        return nullcontext()  # and leave the compiler unimported: it takes seconds
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


def check_resolution(backbone: nn.Module, sizes: Iterable[int]) -> None:
    """Raise UserError unless the backbone takes square images of these sizes (pixels)."""
    device = next(backbone.parameters()).device
    for size in sizes:
        try:
            with evaluating(backbone), torch.no_grad():
                backbone(torch.zeros(1, 3, size, size, device=device))
        except REFUSALS as error:
            raise UserError(
                f"the backbone cannot take images of {size} x {size} pixels ({first_line(error)}): choose other view "
                "sizes"
            ) from None


# ---------------------------------------------------------------------------------------------------------------------
# Drop path whose choices belong to samples, not to their place in a batch
# ---------------------------------------------------------------------------------------------------------------------


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


# ---------------------------------------------------------------------------------------------------------------------
# Activation checkpointing
# ---------------------------------------------------------------------------------------------------------------------


def recompute_blocks(backbone: nn.Module) -> None:
    """Let every residual or transformer block forget its activations and compute them again in the backward pass.

    The second pass sees the same drop path and leaves BatchNorm's running statistics alone, so that results are the
    same. Names in the state stay as they are.

    Raises:
        UserError: the backbone has no blocks that this function knows: it is neither a ResNet nor a ViT.
    """
    stages = [getattr(backbone, name, None) for name in ("layer1", "layer2", "layer3", "layer4", "blocks")]
    blocks = [block for stage in stages if isinstance(stage, nn.Sequential | nn.ModuleList) for block in stage]
    if not blocks:
        raise UserError("efficiency.checkpointing knows the blocks of ResNets and ViTs only: switch it off")
    for block in blocks:
        _recompute(block)


def _recompute(block: nn.Module) -> None:
    forward = block.forward
    drop_paths = [module for module in block.modules() if isinstance(module, SampleDropPath)]

    def checkpointed_forward(*inputs: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **keywords)
        names = [layer.row_keys for layer in drop_paths]
        return checkpoint(
            forward,
            *inputs,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), _second_pass(block, drop_paths, names)),
            **keywords,
        )

    block.forward = checkpointed_forward


@contextmanager
def _second_pass(
    block: nn.Module, drop_paths: Sequence[SampleDropPath], names: Sequence[Tensor | None]
) -> Iterator[None]:
    """Repeat a block's pass: the same drop path, no statistics."""
    norms = [module for module in block.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    counts = [norm.num_batches_tracked.clone() if norm.num_batches_tracked is not None else None for norm in norms]
    momenta = [norm.momentum for norm in norms]
    before = [layer.row_keys for layer in drop_paths]
    for norm in norms:
        norm.momentum = 0.0  # what the second pass adds to the statistics
    for layer, rows in zip(drop_paths, names, strict=True):
        layer.row_keys = rows
    try:
        yield
    finally:
        for norm, momentum, count in zip(norms, momenta, counts, strict=True):
            norm.momentum = momentum
            if count is not None and norm.num_batches_tracked is not None:
                norm.num_batches_tracked.copy_(count)
        for layer, rows in zip(drop_paths, before, strict=True):
            layer.row_keys = rows
