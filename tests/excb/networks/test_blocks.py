"""Outputs of all blocks in one pass: the network's own layers by hooks, and its own output, bit by bit."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.blocks import Blocks
from excb.networks.outputs import FeatureMap, LastClassTokens

pytestmark = pytest.mark.usefixtures("one_thread")
IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
VIT: dict[str, Any] = {"patch_size": 16, "embed_dim": 12, "depth": 5, "num_heads": 2, "img_size": 64}
STAGED: dict[str, tuple[str, ...]] = {
    "resnet18": ("layer1", "layer2", "layer3", "layer4"),
    "conv4": ("blocks.0", "blocks.1", "blocks.2", "blocks.3"),
    "timm:resnet10t": ("act1", "layer1", "layer2", "layer3", "layer4"),
    "timm:tf_efficientnet_lite0": ("blocks.0", "blocks.1", "blocks.2", "blocks.4", "blocks.6"),
    "timm:convnext_atto": ("stages.0", "stages.1", "stages.2", "stages.3"),
}


def build(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    network = Architecture(name, options).build().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def hooked(network: nn.Module, names: tuple[str, ...]) -> tuple[list[Tensor], Tensor]:
    """Outputs of these modules, and the network's, in its own forward pass."""
    found: list[Tensor] = []
    handles = [
        network.get_submodule(name).register_forward_hook(lambda _module, _inputs, result: found.append(result.clone()))
        for name in names
    ]
    with torch.no_grad():
        own = network(IMAGES)
    for handle in handles:
        handle.remove()
    return found, own


@pytest.mark.parametrize("name", STAGED)
def test_stages_and_the_networks_own_output(name: str) -> None:
    network = build(name)
    maps, own = hooked(network, STAGED[name])
    with torch.no_grad():
        outputs, pooled = Blocks(network)(IMAGES)
    assert len(outputs) == len(maps) == len(Blocks(network))
    for output, expected in zip(outputs, maps, strict=True):
        assert output.class_token is None
        torch.testing.assert_close(output.map, expected, rtol=0, atol=0)
    torch.testing.assert_close(pooled, own)


def test_blocks_of_a_vit_each_through_the_final_norm() -> None:
    network = build("timm:vit_tiny_patch16_224", **VIT)
    tokens, own = hooked(network, tuple(f"blocks.{number}" for number in range(5)))
    with torch.no_grad():
        outputs, pooled = Blocks(network)(IMAGES)
        for output, after in zip(outputs, tokens, strict=True):
            normed = network.norm(after)
            torch.testing.assert_close(output.class_token, normed[:, 0])
            torch.testing.assert_close(output.map.flatten(2).transpose(1, 2), normed[:, 1:])
        torch.testing.assert_close(pooled, own)
        last = torch.cat([output.class_token for output in outputs[1:] if output.class_token is not None], 1)
        torch.testing.assert_close(last, LastClassTokens(network)(IMAGES))


def test_a_network_without_maps_is_refused() -> None:
    with pytest.raises(UserError, match="this Flatten gives no maps"):
        Blocks(nn.Flatten())


def test_conv4_gives_its_last_map() -> None:
    network = build("conv4")
    reader = FeatureMap(network)
    with torch.no_grad():
        torch.testing.assert_close(reader(IMAGES), network.blocks(IMAGES))
    assert reader.strides == (16,)
