"""Our own networks are traced for any number of images, as exports to ONNX need: no length becomes a constant."""

import pytest
import torch

from excb.networks.architecture import Architecture

pytestmark = pytest.mark.usefixtures("one_thread")

_VIT = {"embed_dim": 12, "depth": 1, "num_heads": 2}


@pytest.mark.parametrize(
    ("name", "options", "side"),
    [
        ("conv4", {"widths": [4, 4, 4, 4]}, 32),
        ("resnet18_cifar", {}, 32),
        ("capi", {"width": 8, "depth": 1, "heads": 2, "patch": 14, "registers": 4}, 56),
        ("vit_tiny", _VIT, 64),
        ("vit_tiny", _VIT | {"position_interpolation": "dino"}, 64),
        ("vit_tiny", _VIT | {"position_interpolation": "dino"}, 224),
    ],
)
def test_a_network_is_traced_for_any_batch(name: str, options: dict[str, object], side: int) -> None:
    network = Architecture(name, options).build().eval()
    images = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(0))
    batch = torch.export.Dim("batch")
    program = torch.export.export(network, (images[:2],), dynamic_shapes=({0: batch},))
    with torch.no_grad():
        torch.testing.assert_close(program.module()(images), network(images))
