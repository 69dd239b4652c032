"""Activation checkpointing: blocks recompute their activations in the backward pass, with the same results."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from excb.errors import UserError
from excb.networks.drop_path import SampleDropPath


def recompute_blocks(backbone: nn.Module) -> None:
    """Let every residual or transformer block recompute its activations in the backward pass.

    The second pass uses the same drop path and leaves BatchNorm's running statistics alone, so results are the same.
    Names in the state stay the same.

    Raises:
        UserError: the backbone is neither a ResNet nor a ViT, so its blocks are unknown.
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
        if torch.compiler.is_compiling():  # it repeats operations of its graph: no state changes twice
            return checkpoint(forward, *inputs, use_reentrant=False, **keywords)
        keys = [layer.row_keys for layer in drop_paths]
        return checkpoint(
            forward,
            *inputs,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), _second_pass(block, drop_paths, keys)),
            **keywords,
        )

    block.forward = checkpointed_forward


@contextmanager
def _second_pass(
    block: nn.Module, drop_paths: Sequence[SampleDropPath], keys: Sequence[Tensor | None]
) -> Iterator[None]:
    """Repeat a block's pass: the same drop path, no statistics."""
    norms = [module for module in block.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    counts = [norm.num_batches_tracked.clone() if norm.num_batches_tracked is not None else None for norm in norms]
    momenta = [norm.momentum for norm in norms]
    before = [layer.row_keys for layer in drop_paths]
    for norm in norms:
        norm.momentum = 0.0  # weight of the second pass in the statistics
    for layer, rows in zip(drop_paths, keys, strict=True):
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
