"""torchvision's ResNets, and two kinds that it has not: wider ones, and those with a stem for small images."""

import re
from typing import Any

from torch import nn
from torchvision import models
from torchvision.models import ResNet
from torchvision.models.resnet import BasicBlock, Bottleneck

# What tensors do not show of a stem for small images, and the usual answer to each; see `small_stem`.
STEM = {"stem_padding": 1, "stem_stride": 1, "stem_pool": False}

_WIDER: dict[str, tuple[type[BasicBlock | Bottleneck], list[int]]] = {"resnet50": (Bottleneck, [3, 4, 6, 3])}


def resnet(name: str, options: dict[str, Any]) -> ResNet:
    """A ResNet with its classifier and new random weights; the last BatchNorm of every block starts at zero.

    Args:
        name: torchvision's, such as "resnet50"; "resnet50w2", with twice as many channels everywhere; "resnet18_cifar",
            whose stem is for small images.
        options: `zero_init_residual`; `in_chans`, channels of the images; and for a stem for small images those of
            `small_stem`.

    Raises:
        TypeError: an option that it does not take.
    """
    base, width, small = re.fullmatch(r"(resnet\d+)(?:w(\d))?(_cifar)?", name).groups()  # type: ignore[union-attr]
    options = {"zero_init_residual": True} | options
    channels = options.pop("in_chans", 3)
    stem = {option: options.pop(option) for option in STEM.keys() & options.keys()} if small else {}
    network: ResNet = (
        _WiderResNet(*_WIDER[base], widen=int(width), **options) if width else getattr(models, base)(**options)
    )
    if small:
        small_stem(network, **stem)
    if channels != 3:
        first: Any = network.conv1
        network.conv1 = nn.Conv2d(
            channels, first.out_channels, first.kernel_size, first.stride, padding=first.padding, bias=False
        )
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    return network


def small_stem(network: ResNet, *, stem_padding: int = 1, stem_stride: int = 1, stem_pool: bool = False) -> None:
    """Give a ResNet a stem for images of 32 pixels or so: a convolution of 3 x 3, usually of stride 1, without pooling.

    Args:
        network: is changed.
        stem_padding: pixels of zeros around the image: 1 in most code, 2 in solo-learn's.
        stem_stride: of the convolution, in pixels.
        stem_pool: keep the max-pooling after it.
    """
    channels = network.conv1.out_channels
    network.conv1 = nn.Conv2d(3, channels, 3, stride=stem_stride, padding=stem_padding, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    if not stem_pool:
        network.maxpool = nn.Identity()  # type: ignore[assignment]


class _WiderResNet(ResNet):
    """A ResNet with `widen` times as many channels in every layer, stem included.

    torchvision's `wide_resnet50_2` is another network: only the inner convolutions of its blocks are wider.
    """

    def __init__(
        self, block: type[BasicBlock | Bottleneck], layers: list[int], *, widen: int, zero_init_residual: bool
    ) -> None:
        self._widen = widen
        super().__init__(block, layers, zero_init_residual=zero_init_residual)
        self.conv1 = nn.Conv2d(3, 64 * widen, 7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.bn1 = nn.BatchNorm2d(64 * widen)
        self.fc = nn.Linear(512 * widen * block.expansion, 1000)

    def _make_layer(
        self, block: type[BasicBlock | Bottleneck], planes: int, blocks: int, stride: int = 1, dilate: bool = False
    ) -> nn.Sequential:
        if planes == 64:  # the first stage, which follows the wider stem
            self.inplanes = 64 * self._widen
        return super()._make_layer(block, planes * self._widen, blocks, stride, dilate)
