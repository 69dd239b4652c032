"""Outputs of a backbone: pooled features, class tokens, a map or a pyramid of maps; and images of another size."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import isqrt, prod
from operator import mul
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from excb.console import plural
from excb.errors import UserError, require
from excb.networks.architecture import Architecture
from excb.networks.backbone import feature_width
from excb.networks.conv4 import Conv4
from excb.networks.preprocessing import Preprocessing

Output = Literal["pool", "last4", "map", "pyramid"]
LAST_BLOCKS = 4  # as DINO evaluates ViT-S (`n_last_blocks` of its eval_linear.py)
STRIDES = (4, 8, 16, 32)  # of a pyramid, in pixels


def output(network: nn.Module, kind: Output) -> "Pooled | LastClassTokens | FeatureMap | Pyramid":
    """A module that runs a network and returns one kind of output, for normalised images [B, 3, H, W].

    - "pool": what the network itself returns, [B, D].
    - "last4": a ViT's class tokens of its last four blocks, [B, 4 * D].
    - "map": the last stage before pooling, or a ViT's patch tokens through its final norm, [B, D, H / s, W / s].
    - "pyramid": four maps of strides 4, 8, 16 and 32, finest first; see `Pyramid`.

    The module shares the network's weights, passes gradients, and has `width` (D; for a pyramid, one for each map) and
    `strides` (pixels from cell to cell, one for each map; empty for "pool" and "last4").

    Raises:
        UserError: no such kind, or the network has no such output.
    """
    require(kind in get_args(Output), f"features are {', '.join(get_args(Output))}, not '{kind}'")
    if kind == "pool":
        return Pooled(network)
    if kind == "last4":
        return LastClassTokens(network)
    return FeatureMap(network) if kind == "map" else Pyramid(network)


class Pooled(nn.Module):
    """The network's own output: [B, 3, H, W] -> [B, D]."""

    strides: tuple[int, ...] = ()

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.width = feature_width(network)

    def forward(self, images: Tensor) -> Tensor:
        """Pooled features of normalised images."""
        return cast("Tensor", self.network(images))


class LastClassTokens(nn.Module):
    """The class tokens of a ViT's last four blocks, each through the final norm: [B, 3, H, W] -> [B, 4 * D].

    The oldest of the four comes first, as in DINO's `eval_linear.py`.

    Raises:
        UserError: the network is not a ViT whose blocks process its class token, or has fewer than four blocks.
    """

    strides: tuple[int, ...] = ()

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        steps = getattr(network, "forward_intermediates", None)
        # CaiT, XCiT and ConViT add their class token after the blocks for patches.
        passes = steps is not None and "return_prefix_tokens" in inspect.signature(steps).parameters
        if getattr(network, "cls_token", None) is None or not passes:
            raise UserError(
                f"only ViTs have class tokens, and this {type(network).__name__} has none: choose pooled features"
            )
        blocks: Any = network.blocks
        if len(blocks) < LAST_BLOCKS:
            raise UserError(
                f"this ViT has {plural(len(blocks), 'block')}: the class tokens of its last {LAST_BLOCKS} are needed"
            )
        self.network = network
        self.width = LAST_BLOCKS * feature_width(network)

    def forward(self, images: Tensor) -> Tensor:
        """Class tokens of normalised images."""
        network: Any = self.network
        layers = network.forward_intermediates(
            images, indices=LAST_BLOCKS, return_prefix_tokens=True, norm=True, intermediates_only=True
        )
        return torch.cat([prefix[:, 0] for _patches, prefix in layers], dim=1)


@dataclass(frozen=True)
class Stage:
    """A map inside a network: the output of a stage, or the patch tokens after a block."""

    index: int
    width: int
    stride: int


class Maps(nn.Module):
    """A network that returns maps.

    Raises:
        UserError: it is not conv4, a network of timm with maps, or one of torchvision's ResNets, MobileNetV2,
            EfficientNets, RegNets, ShuffleNetV2 and MNASNets.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.stages = _stages(network)
        # Whether the last map has a final norm. Hiera, which has none before pooling, refuses `norm=True`.
        self._norm = hasattr(network, "norm") or hasattr(network, "norm_pre")

    @property
    def patch(self) -> int | None:
        """Side in pixels of the patches of a plain ViT, whose blocks all have one stride, or None."""
        strides = {stage.stride for stage in self.stages}
        return strides.pop() if len(strides) == 1 else None

    def maps(self, images: Tensor, indices: Sequence[int]) -> list[Tensor]:
        """The maps [B, D, h, w] of the stages with these indices, in ascending order."""
        network: Any = self.network
        if hasattr(network, "forward_intermediates"):
            outputs = network.forward_intermediates(
                images, indices=list(indices), norm=self._norm, output_fmt="NCHW", intermediates_only=True
            )
            return cast("list[Tensor]", outputs)
        tensor, maps = images, []
        if isinstance(network, Conv4):
            layers: Iterable[nn.Module] = cast("Any", network.blocks)
        elif (own := _torchvision_layers(network)) is not None:
            layers = own
        else:
            tensor = network.maxpool(network.relu(network.bn1(network.conv1(images))))
            layers = (network.layer1, network.layer2, network.layer3, network.layer4)
        for index, layer in enumerate(layers):
            tensor = layer(tensor)
            if index in indices:
                maps.append(tensor)
        return maps


def _stages(network: Any) -> list[Stage]:
    from torchvision.models import ResNet

    if isinstance(network, ResNet):
        width = feature_width(network)
        finest = network.conv1.stride[0] * (1 if isinstance(network.maxpool, nn.Identity) else 2)
        return [Stage(index, width >> 3 - index, finest << index) for index in range(4)]
    if isinstance(network, Conv4):
        convolutions: list[Any] = [block[0] for block in cast("Any", network.blocks)]
        strides = accumulate(network.strides, mul)
        layers = zip(convolutions, strides, strict=True)
        return [Stage(index, layer.out_channels, stride) for index, (layer, stride) in enumerate(layers)]
    own = _torchvision_layers(network)
    if own is not None:
        return _measured_stages(network, own)
    information = getattr(network, "feature_info", ()) if hasattr(network, "forward_intermediates") else ()
    stages = [Stage(index, entry["num_chs"], entry["reduction"]) for index, entry in enumerate(information)]
    same = len({stage.stride for stage in stages}) == 1
    # Blocks of one stride are a ViT's. Its patches must be square, and its tokens must have a final norm.
    patch = getattr(getattr(network, "patch_embed", None), "patch_size", 1)
    uneven = isinstance(patch, Sequence) and len(set(patch)) > 1
    if not stages or (same and (uneven or not hasattr(network, "norm"))):
        raise UserError(f"this {type(network).__name__} gives no maps that excb knows how to take: choose 'pool'")
    return stages


def _torchvision_layers(network: Any) -> Iterable[nn.Module] | None:
    """The layers from images to the last map of a torchvision network whose pooled features are that map's mean.

    ResNets are taken apart elsewhere; None is returned for these and for all others.
    """
    from torchvision import models
    from torchvision.models.mobilenetv2 import MobileNetV2

    match network:
        case models.EfficientNet() | MobileNetV2():
            return network.features
        case models.MNASNet():
            return network.layers
        case models.RegNet():
            return (network.stem, *network.trunk_output)
        case models.ShuffleNetV2():
            first = (network.conv1, network.maxpool)
            return (*first, network.stage2, network.stage3, network.stage4, network.conv5)
    return None


def _measured_stages(network: nn.Module, layers: Iterable[nn.Module]) -> list[Stage]:
    """Width and stride of each layer's map, from a pass on the meta device."""
    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    side, stages = 2 * STRIDES[-1], list[Stage]()
    tensor = torch.empty(2, first.in_channels, side, side, device="meta", dtype=first.weight.dtype)
    for index, layer in enumerate(layers):
        state = {name: value.to("meta") for name, value in (*layer.named_parameters(), *layer.named_buffers())}
        tensor = torch.func.functional_call(layer, state, (tensor,))
        stages.append(Stage(index, tensor.shape[1], side // tensor.shape[2]))
    return stages


class FeatureMap(Maps):
    """The last stage, or a ViT's normed patch tokens: -> [B, D, H / s, W / s].

    Args:
        network: gives maps.
        stride: of the map, in pixels: the last stage of that stride; by default the last stage of all.

    Raises:
        UserError: the network gives no map, or none of that stride.
    """

    def __init__(self, network: nn.Module, stride: int | None = None) -> None:
        super().__init__(network)
        stages = [stage for stage in self.stages if stride in (None, stage.stride)]
        known = ", ".join(map(str, sorted({stage.stride for stage in self.stages})))
        require(bool(stages), f"this {type(network).__name__} has no map of stride {stride}: its strides are {known}")
        self._index = stages[-1].index
        self.width, self.strides = stages[-1].width, (stages[-1].stride,)

    def forward(self, images: Tensor) -> Tensor:
        """The map of normalised images."""
        return self.maps(images, [self._index])[0]


class Pyramid(Maps):
    """Four maps of strides 4, 8, 16 and 32: [B, 3, H, W] -> four times [B, D_i, H / s_i, W / s_i].

    ResNets and other networks with stages return these. A plain ViT has one stride, that of its patches. Its maps are
    the normed patch tokens after each quarter of the blocks, as in BEiT's segmentation (Bao et al., 2022), each at its
    own stride, as in ViTDet's simple pyramid (Li et al., 2022). Both learn to resample. Here nothing is learnt: finer
    maps are interpolated bilinearly, coarser ones are averages of patches.

    Maps of torchvision's ResNets and of ViTs have the image's sides over the stride, rounded up. Other networks round
    as their layers do (ConvNeXt's down). All agree where 32 divides the sides.

    Raises:
        UserError: the network has no stage of one of the strides, or is a ViT of fewer than four blocks.
    """

    strides = STRIDES

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        if self.patch is None:
            last = {stage.stride: stage for stage in self.stages}  # the last stage of every stride
            lacking = [str(stride) for stride in STRIDES if stride not in last]
            require(
                not lacking,
                f"a pyramid needs maps of strides 4, 8, 16 and 32, and this {type(network).__name__} has none of "
                f"{', '.join(lacking)}: choose 'map' or 'pool'",
            )
            stages = [last[stride] for stride in STRIDES]
        else:
            depth = len(self.stages)
            require(depth >= len(STRIDES), f"this ViT has {plural(depth, 'block')}: a pyramid needs four at least")
            stages = [self.stages[-(-depth * quarter // len(STRIDES)) - 1] for quarter in (1, 2, 3, 4)]
        self._indices = [stage.index for stage in stages]
        self.width = tuple(stage.width for stage in stages)

    def forward(self, images: Tensor) -> list[Tensor]:
        """The maps of normalised images, finest first."""
        maps = self.maps(images, self._indices)
        if self.patch is None:
            return maps
        height, width = images.shape[-2:]
        return [  # cropped, because patches may reach beyond the image, where timm pads it
            _at_stride(tokens, self.patch, stride)[..., : -(-height // stride), : -(-width // stride)]
            for tokens, stride in zip(maps, STRIDES, strict=True)
        ]


def _at_stride(tokens: Tensor, patch: int, stride: int) -> Tensor:
    """Resample a map [B, D, h, w] from the stride of its patches to another."""
    if stride % patch == 0:
        return F.avg_pool2d(tokens, stride // patch, ceil_mode=True)
    size = [-(-cells * patch // stride) for cells in tokens.shape[-2:]]
    return F.interpolate(tokens, size=size, mode="bilinear", antialias=stride > patch)


def sized(architecture: Architecture, img_size: int) -> Architecture:
    """The architecture for square images with sides of `img_size` pixels.

    Networks of patches (ViTs, Swin) are built for one size and get the option `img_size`. All others take any size.

    Raises:
        UserError: the patches do not divide the size.
    """
    require(type(img_size) is int and img_size > 0, f"img_size is a side in pixels, not {img_size!r}")
    if architecture.timm_name is None:
        return architecture
    with torch.random.fork_rng(devices=[]):  # its weights are discarded and must not advance the generator
        patches = _patches(architecture.build())
    if patches is None:
        return architecture
    rows, columns = patches.feat_ratio(as_scalar=False)
    require(
        img_size % rows == 0 and img_size % columns == 0,
        f"img_size {img_size} is not a multiple of the patches' {rows} x {columns} pixels of {architecture.name}: "
        f"choose {max(1, img_size // rows) * rows}",
    )
    return replace(architecture, options=architecture.options | {"img_size": img_size})


def resized_preprocessing(preprocessing: Preprocessing, img_size: int) -> Preprocessing:
    """The preprocessing for another size, with the same proportion of resize and crop; rounded down, as timm does."""
    return replace(preprocessing, resize=img_size * preprocessing.resize // preprocessing.crop, crop=img_size)


def resampled(
    tensors: Mapping[str, Tensor], network: nn.Module, *, img_size: int | Sequence[int] | None = None
) -> dict[str, Tensor]:
    """A ViT's tensors with position embeddings for the size that a network was built for.

    Embeddings of patches are interpolated as the network itself does; those of class and register tokens stay.
    Tensors of networks without position embeddings, or for the same size, are returned unchanged.

    Args:
        tensors: of the checkpoint.
        network: will load them.
        img_size: the side, or height and width, in pixels, that the tensors are for. None means the network's size, if
            it has as many patches, else a square.

    Raises:
        UserError: the embeddings are not for images of that size, or not for square ones.
    """
    patches, own, old = _patches(network), getattr(network, "pos_embed", None), tensors.get("pos_embed")
    if patches is None or old is None or not isinstance(own, Tensor) or {own.ndim, old.ndim} != {3}:
        return dict(tensors)
    grid = tuple(patches.grid_size)
    prefix = own.shape[1] - prod(grid)  # tokens that are not patches but have an embedding
    count = old.shape[1] - prefix
    if img_size is not None:
        sides = (img_size, img_size) if isinstance(img_size, int) else img_size
        was = tuple(side // ratio for side, ratio in zip(sides, patches.feat_ratio(as_scalar=False), strict=True))
    else:
        was = grid if count == prod(grid) else (isqrt(max(count, 0)),) * 2
    if prod(was) != count or count < 1:
        raise UserError(
            f"{old.shape[1]} position embeddings are not those of {was[0]} x {was[1]} patches and "
            f"{prefix} other tokens: the checkpoint is for images of another size, or of another architecture"
        )
    from excb.networks.positions import DinoPositions, interpolate

    moved = interpolate(old[:, prefix:].unflatten(1, was), grid, dino=isinstance(network, DinoPositions)).flatten(1, 2)
    return {**tensors, "pos_embed": torch.cat([old[:, :prefix], moved], dim=1)}


def _patches(network: nn.Module) -> Any:
    layer = getattr(network, "patch_embed", None)
    return layer if hasattr(layer, "feat_ratio") and getattr(layer, "grid_size", None) else None
