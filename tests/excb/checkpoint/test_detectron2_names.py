"""Tests of Detectron2's names: all that its ResNets have, no more, and each where it does what it did."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from excb.checkpoint.detectron2_names import detectron2_name, detectron2_names
from excb.errors import UserError
from excb.networks.architecture import TORCHVISION, Architecture
from tests.run_files import pictures

BLOCKS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
NORM = ("weight", "bias", "running_mean", "running_var")


def expected_shapes(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor of Detectron2's `BasicStem` and `res2` to `res5`, written down by hand."""

    def convolution(place: str, outputs: int, inputs: int, side: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{place}.weight", (outputs, inputs, side, side)
        for leaf in NORM:
            yield f"{place}.norm.{leaf}", (outputs,)

    deep = name not in ("resnet18", "resnet34")
    yield from convolution("stem.conv1", 64, 3, 7)
    inputs = 64
    for stage, (count, width) in enumerate(zip(BLOCKS[name], (64, 128, 256, 512), strict=True), start=2):
        outputs = 4 * width if deep else width
        for block in range(count):
            place = f"res{stage}.{block}"
            if inputs != outputs:
                yield from convolution(f"{place}.shortcut", outputs, inputs, 1)
            if deep:
                yield from convolution(f"{place}.conv1", width, inputs, 1)
                yield from convolution(f"{place}.conv2", width, width, 3)
                yield from convolution(f"{place}.conv3", outputs, width, 1)
            else:
                yield from convolution(f"{place}.conv1", width, inputs, 3)
                yield from convolution(f"{place}.conv2", width, width, 3)
            inputs = outputs


@pytest.mark.parametrize("name", TORCHVISION)
def test_every_tensor_has_its_name_and_there_are_no_others(name: str) -> None:
    with torch.device("meta"):
        tensors = Architecture(name).build().state_dict()
    found = detectron2_names(tensors)
    assert {key: tuple(value.shape) for key, value in found.items()} == dict(expected_shapes(name))


def test_resnet50() -> None:
    with torch.device("meta"):
        found = detectron2_names(Architecture("resnet50").build().state_dict())
    assert len(found) == 265
    pattern = r"(stem|res[2-5]\.\d)\.(conv[123]|shortcut)(\.weight|\.norm\.(weight|bias|running_mean|running_var))"
    assert all(re.fullmatch(pattern, name) for name in found)
    assert sum("shortcut" in name for name in found) == 4 * 5


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("conv1.weight", "stem.conv1.weight"),
        ("bn1.running_var", "stem.conv1.norm.running_var"),
        ("layer1.0.conv1.weight", "res2.0.conv1.weight"),
        ("layer3.5.bn2.weight", "res4.5.conv2.norm.weight"),
        ("layer3.22.bn3.running_mean", "res4.22.conv3.norm.running_mean"),
        ("layer4.0.downsample.0.weight", "res5.0.shortcut.weight"),
        ("layer4.0.downsample.1.bias", "res5.0.shortcut.norm.bias"),
    ],
)
def test_names(name: str, expected: str) -> None:
    assert detectron2_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "fc.weight",
        "layer5.0.conv1.weight",
        "layer1.conv1.weight",
        "module.conv1.weight",
        "conv1.weight.extra",
        "layer1.0.downsample.2.weight",
        "layer1.0.conv4.weight",
        "blocks.0.attn.qkv.weight",
        "",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="is not a tensor of a torchvision ResNet's backbone: Detectron2 has no name"):
        detectron2_name(name)


# ---------------------------------------------------------------------------------------------------------------------
# What the tensors do
# ---------------------------------------------------------------------------------------------------------------------


def layer(images: Tensor, tensors: dict[str, Tensor], place: str, *, stride: int = 1, relu: bool = True) -> Tensor:
    """One convolution with its norm, as Detectron2's `Conv2d(norm=..., activation=...)` passes images."""
    weight = tensors[f"{place}.weight"]
    images = F.conv2d(images, weight, stride=stride, padding=weight.shape[-1] // 2)
    scale, shift, mean, variance = (tensors[f"{place}.norm.{leaf}"] for leaf in NORM)
    images = F.batch_norm(images, mean, variance, scale, shift)
    return images.relu() if relu else images


def stages(images: Tensor, tensors: dict[str, Tensor]) -> Iterator[Tensor]:
    """Detectron2's ResNet of bottleneck blocks with STRIDE_IN_1X1 False, after Detectron2's names alone."""
    images = F.max_pool2d(layer(images, tensors, "stem.conv1", stride=2), 3, 2, 1)
    for stage in range(2, 6):
        for block in sorted({int(name.split(".")[1]) for name in tensors if name.startswith(f"res{stage}.")}):
            place, stride = f"res{stage}.{block}", 2 if stage > 2 and block == 0 else 1
            inner = layer(images, tensors, f"{place}.conv1")
            inner = layer(inner, tensors, f"{place}.conv2", stride=stride)
            inner = layer(inner, tensors, f"{place}.conv3", relu=False)
            if f"{place}.shortcut.weight" in tensors:
                images = layer(images, tensors, f"{place}.shortcut", stride=stride, relu=False)
            images = (images + inner).relu()
        yield images


def shaken(network: nn.Module) -> nn.Module:
    """The network in eval mode with norms of which none is like another."""
    for tensor in network.state_dict().values():
        if tensor.ndim == 1:
            tensor.copy_(0.5 + torch.rand(tensor.shape))
    return network.eval()


@torch.no_grad()
def stages_of(network: nn.Module, images: Tensor) -> list[Tensor]:
    """The outputs of torchvision's four stages."""
    taken: list[Tensor] = []
    for number in range(1, 5):
        stage = network.get_submodule(f"layer{number}")
        stage.register_forward_hook(lambda _module, _inputs, output: taken.append(output))
    network(images)
    return taken


def test_renamed_tensors_give_the_same_features() -> None:
    torch.manual_seed(0)
    network: Any = torchvision.models.resnet.ResNet(torchvision.models.resnet.Bottleneck, [1, 2, 1, 1])
    network.fc = nn.Identity()
    shaken(network)
    expected = stages_of(network, pictures(2))
    with torch.no_grad():
        found = list(stages(pictures(2), detectron2_names(network.state_dict())))
    for theirs, ours in zip(found, expected, strict=True):
        torch.testing.assert_close(theirs, ours)
        assert ours.std() > 0.01


@pytest.mark.detectron2
@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")  # 2026-11-21: at Detectron2's import
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_detectron2s_own_backbone_gives_the_same_features(name: str) -> None:
    from detectron2.config import get_cfg
    from detectron2.modeling import build_backbone

    torch.manual_seed(0)
    network = shaken(Architecture(name).build())
    settings = get_cfg()
    settings.MODEL.DEVICE = "cpu"
    settings.MODEL.RESNETS.DEPTH = int(name.removeprefix("resnet"))
    settings.MODEL.RESNETS.RES2_OUT_CHANNELS = 64 if name == "resnet18" else 256
    settings.MODEL.RESNETS.STRIDE_IN_1X1 = False
    settings.MODEL.RESNETS.OUT_FEATURES = ["res2", "res3", "res4", "res5"]
    theirs = build_backbone(settings).eval()
    theirs.load_state_dict(detectron2_names(network.state_dict()), strict=True)
    with torch.no_grad():
        found = theirs(pictures(2))
    for number, ours in enumerate(stages_of(network, pictures(2)), start=2):
        torch.testing.assert_close(found[f"res{number}"], ours, rtol=1e-4, atol=1e-4)
        assert ours.std() > 0.01
