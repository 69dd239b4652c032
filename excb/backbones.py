"""Backbones by name: torchvision's ResNets, timm's everything else; images [B, 3, H, W] -> features [B, width]."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from excb import seeding
from excb.errors import UserError, nearest_name

TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
# Short names for the networks of the field. `vit_small` is DINO's ViT-S/16: six heads, qkv bias, LayerNorm eps 1e-6.
TIMM_NAMES = {
    "vit_tiny": "vit_tiny_patch16_224",
    "vit_small": "vit_small_patch16_224",
    "vit_base": "vit_base_patch16_224",
}

# How networks refuse options and images.
_REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@dataclass(frozen=True)
class Architecture:
    """A backbone's architecture: all that is needed, besides weights, to build it.

    Args:
        name: one of torchvision's ResNets ("resnet50"), a short name ("vit_small") or "timm:NAME".
        options: keyword arguments for timm's `create_model`, or `zero_init_residual` of torchvision's ResNets.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def timm_name(self) -> str | None:
        """The name timm knows this architecture by, or None for torchvision's."""
        return self.name.removeprefix("timm:") if self.name.startswith("timm:") else TIMM_NAMES.get(self.name)

    def build(self, *, drop_path: float = 0.0) -> nn.Module:
        """Build the network without its classifier, with new random weights from torch's generator.

        Args:
            drop_path: stochastic depth, largest rate (timm's networks only).

        Returns:
            A module [B, 3, H, W] -> [B, width], `width` as `feature_width` tells. Torchvision's ResNets start with the
            last BatchNorm of every block at zero.

        Raises:
            UserError: unknown name, or options that the network does not take.
        """
        if self.name in TORCHVISION:
            return self._build_torchvision(drop_path)
        return _seed_drop_path(self._build_timm(drop_path))

    def _build_torchvision(self, drop_path: float) -> nn.Module:
        import torchvision

        if drop_path or not self.options.keys() <= {"zero_init_residual"}:
            raise UserError(f"backbone {self.name} takes the option zero_init_residual only: use timm:{self.name}")
        network = getattr(torchvision.models, self.name)(**{"zero_init_residual": True} | self.options)
        network.num_features = network.fc.in_features
        network.fc = nn.Identity()
        return cast("nn.Module", network)

    def _build_timm(self, drop_path: float) -> nn.Module:
        import timm

        name = self.timm_name
        if name is None or not timm.is_model(name):
            names = [
                *TORCHVISION,
                *TIMM_NAMES,
                *(f"timm:{known}" for known in timm.list_models()),
            ]
            raise UserError(f"no backbone is called '{self.name}'{nearest_name(self.name, names)}")
        options: dict[str, Any] = ({"drop_path_rate": drop_path} if drop_path else {}) | self.options
        reason = ""
        # Views of two resolutions need position embeddings that follow the image; convolutional networks have none.
        for resolution in ({"dynamic_img_size": True}, dict[str, Any]()):
            try:
                return timm.create_model(name, num_classes=0, **resolution, **options)
            except _REFUSALS as error:
                reason = _first_line(error)
        raise UserError(f"timm's {name} does not take these options: {reason}")


def feature_width(backbone: nn.Module) -> int:
    """Width of the features that a built backbone returns."""
    return int(getattr(backbone, "head_hidden_size", None) or backbone.num_features)  # type: ignore[arg-type]


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
        except _REFUSALS as error:
            raise UserError(
                f"the backbone cannot take images of {size} x {size} pixels ({_first_line(error)}): choose other view "
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
        self.row_names: Tensor | None = None

    def forward(self, branch: Tensor) -> Tensor:
        """Zero whole rows of a residual branch [R, ...] and scale the others by 1 / (1 - rate)."""
        if not self.training or self.rate == 0:
            return branch
        if self.row_names is None:
            raise RuntimeError("a training pass through drop path needs `drop_path_names`")
        draws = seeding.uniform(self.row_names, torch.full_like(self.row_names, self.layer))
        keep = (draws >= self.rate).to(branch.dtype) / (1 - self.rate)
        return branch * keep.view(-1, *[1] * (branch.ndim - 1))


def _seed_drop_path(backbone: nn.Module) -> nn.Module:
    """Replace timm's DropPath layers, which draw from a global generator, by `SampleDropPath`."""
    from timm.layers import DropPath

    layers = [
        (parent, name, child)
        for parent in backbone.modules()
        for name, child in parent.named_children()
        if isinstance(child, DropPath)
    ]
    for layer, (parent, name, child) in enumerate(layers):
        setattr(parent, name, SampleDropPath(float(child.drop_prob or 0.0), layer))
    return backbone


@contextmanager
def drop_path_names(backbone: nn.Module, sample_names: Tensor | None, views: Sequence[int]) -> Iterator[None]:
    """Name the rows of the next forward pass, view by view, for drop path.

    Args:
        backbone: a backbone that `Architecture.build` made.
        sample_names: folded (seed, epoch, sample) of every image, [B], or None where there is no drop path.
        views: indices of the views in the batch, in order.
    """
    layers = [module for module in backbone.modules() if isinstance(module, SampleDropPath)]
    if layers and sample_names is not None:
        rows = torch.cat([seeding.fold_tensor(sample_names, torch.full_like(sample_names, view)) for view in views])
        for layer in layers:
            layer.row_names = rows
    try:
        yield
    finally:
        for layer in layers:
            layer.row_names = None


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

    def forgetful(*inputs: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **keywords)
        names = [layer.row_names for layer in drop_paths]
        return checkpoint(
            forward,
            *inputs,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), _second_pass(block, drop_paths, names)),
            **keywords,
        )

    block.forward = forgetful


@contextmanager
def _second_pass(
    block: nn.Module, drop_paths: Sequence[SampleDropPath], names: Sequence[Tensor | None]
) -> Iterator[None]:
    """Repeat a block's pass: the same drop path, no statistics."""
    norms = [module for module in block.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    counts = [norm.num_batches_tracked.clone() if norm.num_batches_tracked is not None else None for norm in norms]
    momenta = [norm.momentum for norm in norms]
    before = [layer.row_names for layer in drop_paths]
    for norm in norms:
        norm.momentum = 0.0  # what the second pass adds to the statistics
    for layer, rows in zip(drop_paths, names, strict=True):
        layer.row_names = rows
    try:
        yield
    finally:
        for norm, momentum, count in zip(norms, momenta, counts, strict=True):
            norm.momentum = momentum
            if count is not None and norm.num_batches_tracked is not None:
                norm.num_batches_tracked.copy_(count)
        for layer, rows in zip(drop_paths, before, strict=True):
            layer.row_names = rows
