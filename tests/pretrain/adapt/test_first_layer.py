"""Weights of three channels, adapted to images of others."""

import pytest
import torch

from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.pretrain.adapt.first_layer import adapted_weights

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = [
    Architecture("conv4", {"widths": [4, 4, 4, 8]}),
    Architecture("resnet18_cifar"),
    Architecture("timm:vit_tiny_patch16_224", {"depth": 1, "embed_dim": 24, "num_heads": 3}),
    Architecture("timm:resnet10t", {"channels": [8, 8, 16, 16], "stem_width": 4}),
]


@pytest.mark.parametrize("architecture", SMALL, ids=lambda each: each.name)
@pytest.mark.parametrize("channels", [1, 6, 12])
def test_equal_channels_give_what_grey_images_gave(architecture: Architecture, channels: int) -> None:
    theirs = architecture.build().eval()
    ours = architecture.of_channels(channels).build().eval()
    ours.load_state_dict(adapted_weights(theirs.state_dict(), ours.state_dict(), channels, what="it"))
    grey = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        ours(grey.expand(-1, channels, -1, -1)), theirs(grey.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-5
    )


def test_other_first_layers_are_refused() -> None:
    tensors = {"stem.weight": torch.zeros(8, 48, 3, 3)}
    with pytest.raises(UserError, match=r"it cannot be adapted from 3 channels to 12: stem\.weight is \[8, 48, 3, 3\]"):
        adapted_weights(tensors, {"stem.weight": torch.zeros(8, 192, 3, 3)}, 12, what="it")
    with pytest.raises(UserError, match="cannot be adapted"):
        adapted_weights({"fc.weight": torch.zeros(8, 3)}, {"fc.weight": torch.zeros(8, 4)}, 4, what="it")
