"""Tests of networks without random weights: loading gives the network that was saved, and moves no generator."""

import pytest
import torch

from excb.networks.architecture import Architecture
from excb.networks.backbone import Uninitialised


@pytest.mark.parametrize(
    "architecture",
    [
        Architecture("resnet18"),
        Architecture("vit_tiny", {"img_size": 32, "patch_size": 8}),
        Architecture("timm:vit_tiny_patch16_dinov3_qkvb", {"img_size": 32, "depth": 2}),  # frequencies are buffers
        Architecture("conv4"),
    ],
    ids=lambda each: each.name,
)
def test_a_network_that_is_loaded_strictly_is_the_one_that_was_saved(architecture: Architecture) -> None:
    torch.manual_seed(0)
    saved = architecture.build().eval()
    before = torch.get_rng_state()
    with Uninitialised():  # type: ignore[no-untyped-call, unused-ignore]
        network = architecture.build().eval()
    assert torch.equal(torch.get_rng_state(), before)
    for parameter in network.parameters():
        parameter.data.fill_(torch.nan)  # whatever memory held
    network.load_state_dict(saved.state_dict())
    for (name, ours), (_, theirs) in zip(network.named_buffers(), saved.named_buffers(), strict=True):
        assert torch.equal(ours, theirs), name
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(network(images), saved(images))
