"""Networks of images of any number of channels, and weights adapted to them from three."""

import pytest
import torch

from excb.checkpoint.coverage import blueprint
from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.backbone import check_resolution, image_channels
from excb.networks.channels import adapted_weights

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = [
    Architecture("conv4", {"widths": [4, 4, 4, 8]}),
    Architecture("resnet18_cifar"),
    Architecture("timm:vit_tiny_patch16_224", {"depth": 1, "embed_dim": 24, "num_heads": 3}),
    Architecture("timm:resnet10t", {"channels": [8, 8, 16, 16], "stem_width": 4}),
]


@pytest.mark.parametrize("architecture", SMALL, ids=lambda each: each.name)
@pytest.mark.parametrize("channels", [1, 2, 4, 12])
def test_networks_take_images_of_any_channels(architecture: Architecture, channels: int) -> None:
    network = architecture.of_channels(channels).build().eval()
    assert image_channels(network) == channels
    assert network(torch.zeros(1, channels, 32, 32)).ndim == 2
    check_resolution(network, [32])
    with pytest.raises(RuntimeError):
        network(torch.zeros(1, 3, 32, 32))


def test_three_channels_are_no_option() -> None:
    architecture = Architecture("conv4", {"stem": 2})
    assert architecture.of_channels(12).of_channels(3) == architecture
    assert architecture.channels == 3
    torch.manual_seed(0)
    before = Architecture("resnet18_cifar").build().state_dict()
    torch.manual_seed(0)
    after = Architecture("resnet18_cifar", {"in_chans": 3}).build().state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name", ["capi", "torchvision:vgg11"])
def test_networks_of_rgb_alone_say_so(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} takes images of 3 channels, not 2: choose conv4"):
        Architecture(name).of_channels(2)


@pytest.mark.parametrize("value", [0, -1, True, "2", 1.5, 10**9])
def test_nonsense_is_refused(value: object) -> None:
    with pytest.raises(UserError, match="in_chans is a number from 1 to 4,096"):
        Architecture("conv4", {"in_chans": value}).build()


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


def test_a_blueprint_has_the_channels() -> None:
    assert blueprint(SMALL[0].of_channels(5))["blocks.0.0.weight"].shape[1] == 5
