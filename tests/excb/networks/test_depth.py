"""Tests of the order of a backbone's layers."""

import pytest
import torch
from torch import nn

from excb.networks.architecture import Architecture
from excb.networks.depth import depths, layer_count

SMALL_VIT: dict[str, object] = {"depth": 3, "embed_dim": 12, "num_heads": 2, "patch_size": 8, "img_size": 32}
# By architecture: the number of layers, and some tensors with their depths.
EXPECTED: list[tuple[str, dict[str, object], int, dict[str, int]]] = [
    ("conv4", {}, 4, {"blocks.0.0.weight": 0, "blocks.1.1.running_mean": 1, "blocks.3.1.bias": 3}),
    ("resnet18", {}, 9, {"conv1.weight": 0, "bn1.running_var": 0, "layer1.0.conv1.weight": 1, "layer4.1.bn2.bias": 8}),
    ("resnet18_cifar", {}, 9, {"conv1.weight": 0, "layer2.0.downsample.1.num_batches_tracked": 3}),
    ("vit_tiny", SMALL_VIT, 4, {"cls_token": 0, "pos_embed": 0, "blocks.0.norm1.weight": 1, "norm.bias": 3}),
    ("timm:resnet10t", {}, 5, {"conv1.0.weight": 0, "layer1.0.conv1.weight": 1, "layer4.0.conv2.weight": 4}),
    ("timm:tf_efficientnet_lite0", {}, 17, {"conv_stem.weight": 0, "blocks.0.0.conv_dw.weight": 1, "bn2.bias": 16}),
    ("timm:mobilenetv3_small_100", {}, 14, {"bn1.running_mean": 0, "conv_head.weight": 13}),
    ("torchvision:mobilenet_v2", {}, 19, {"features.0.0.weight": 0, "features.18.1.weight": 18}),
]


@pytest.mark.parametrize(("name", "options", "layers", "some"), EXPECTED)
def test_layers_are_in_the_order_of_the_network(
    name: str, options: dict[str, object], layers: int, some: dict[str, int]
) -> None:
    network = Architecture(name, options).build()
    order = depths(network)
    assert order.keys() == network.state_dict().keys()
    assert {place: order[place] for place in some} == some
    assert set(order.values()) == set(range(layers))
    assert layer_count(order) == layers


@pytest.mark.parametrize("name", ["conv4", "timm:resnet10t", "torchvision:mobilenet_v2"])
def test_the_backward_pass_needs_no_layer_before_the_first_that_learns(name: str) -> None:
    """Independent of names: frozen layers get no gradient, and their activations none either."""
    network = Architecture(name).build().eval()
    order = depths(network)
    first = layer_count(order) - 1
    inputs: dict[str, torch.Tensor] = {}
    for place, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _m, _i, out, place=place: inputs.update({place: out}))
    for place, parameter in network.named_parameters():
        parameter.requires_grad_(order[place] >= first)
    network(torch.rand(2, 3, 64, 64)).sum().backward()
    for place, output in inputs.items():
        assert output.requires_grad == (order[f"{place}.weight"] >= first), place


def test_what_stands_between_two_sequences_is_a_layer_of_its_own() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.zeros(3))
            self.stem = nn.Linear(3, 3)
            self.blocks = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
            self.norm = nn.BatchNorm1d(3, affine=False)
            self.scale = nn.Linear(3, 3)

    order = depths(Network())
    assert order["token"] == order["stem.weight"] == 0
    assert (order["blocks.0.weight"], order["blocks.1.bias"], order["scale.weight"]) == (1, 2, 3)
    assert order["norm.running_mean"] == 3
