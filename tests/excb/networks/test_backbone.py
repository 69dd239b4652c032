"""Built backbones: image sizes that fit, eval mode restored, what their layers compute."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.backbone import (
    bf16_pays_on_cpus,
    check_resolution,
    evaluating,
    layer_passes,
    strides_over_one_pixel,
)
from excb.networks.frozen import parts
from excb.networks.frozen.parts import InParts, images_at_once

pytestmark = pytest.mark.usefixtures("one_thread")

aten = torch.ops.aten
TINY_RESNET = Architecture("timm:resnet10t", {"channels": [8, 8, 16, 16], "stem_width": 4})
TINY_VIT = Architecture("timm:vit_tiny_patch16_224", {"depth": 4, "embed_dim": 24, "num_heads": 3})


def images(batch: int, side: int) -> Tensor:
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0))


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message


def modes(network: nn.Module) -> list[bool]:
    return [module.training for module in network.modules()]


@pytest.mark.parametrize("training", [True, False])
def test_resolutions_that_fit_change_nothing(training: bool) -> None:
    network = TINY_RESNET.build().train(training)
    next(module for module in network.modules() if isinstance(module, nn.BatchNorm2d)).train(not training)
    gradients: set[bool] = set()
    network.register_forward_hook(lambda *_: gradients.add(torch.is_grad_enabled()))
    before, before_modes = {name: value.clone() for name, value in network.state_dict().items()}, modes(network)
    check_resolution(network, [32, 48, 224])
    assert modes(network) == before_modes
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert gradients == {False}


@pytest.mark.parametrize(
    ("architecture", "sizes", "wrong"),
    [
        (TINY_VIT, [224, 96, 50], 50),  # not a multiple of the patch
        (Architecture("timm:vit_tiny_patch16_224", TINY_VIT.options | {"dynamic_img_size": False}), [224, 96], 96),
    ],
)
def test_a_resolution_that_does_not_fit_is_the_users_to_fix(
    architecture: Architecture, sizes: list[int], wrong: int
) -> None:
    network = architecture.build()
    network.get_submodule("norm").eval()
    before = modes(network)
    with pytest.raises(UserError, match=f"{wrong} x {wrong} pixels") as error:
        check_resolution(network, sizes)
    assert "choose another size" in one_line(error)
    assert "()" not in one_line(error)
    assert modes(network) == before


def test_a_refusal_without_words_or_with_many_is_one_line() -> None:
    class Refusing(nn.Module):
        def __init__(self, error: Exception) -> None:
            super().__init__()
            self.linear, self.error = nn.Linear(1, 1), error

        def forward(self, images: Tensor) -> Tensor:
            raise self.error

    for error, reason in ((AssertionError(), "AssertionError"), (ValueError("\nfirst\nsecond"), "first")):
        with pytest.raises(UserError, match=rf"8 x 8 pixels \({reason}\)") as caught:
            check_resolution(Refusing(error), [8])
        one_line(caught)


def test_evaluating_restores_every_module_also_after_an_error() -> None:
    network = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2).eval(), nn.Dropout()))
    before = modes(network)
    assert set(before) == {True, False}
    with evaluating(network):
        assert not any(modes(network))
    assert modes(network) == before
    with pytest.raises(KeyError), evaluating(network):
        raise KeyError
    assert modes(network) == before


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("resnet18", 16, True),
        ("resnet18", 17, False),
        ("resnet18", 32, False),
        ("conv4", 16, False),
        ("conv4", 8, True),
    ],
)
def test_strided_convolutions_of_one_pixel_are_found(name: str, size: int, expected: bool) -> None:
    """The last stage of a ResNet halves a map of size / 16, rounded up; conv4's last layer one of size / 8."""
    backbone = Architecture(name).build()
    assert strides_over_one_pixel(backbone, size) is expected
    assert backbone.training
    assert not any(module._forward_pre_hooks for module in backbone.modules())


@pytest.mark.parametrize(("name", "size"), [("resnet18", 64), ("conv4", 32), ("timm:vit_tiny_patch16_224", 224)])
def test_multiply_adds_are_those_that_torch_counts(name: str, size: int) -> None:
    """Torch counts two operations for each; attention's own products have no weights, and are not layers."""
    backbone = Architecture(name).build()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        backbone(images(1, size))
    counted = counter.get_flop_counts()["Global"]
    products = sum(counted.get(operation, 0) for operation in (aten.convolution, aten.addmm, aten.mm))
    assert sum(each.multiply_adds for each in layer_passes(backbone, size)) == products / 2 > 0


@pytest.mark.parametrize(
    ("network", "size", "expected"),
    [
        (Architecture("resnet18"), 32, True),
        (Architecture("conv4"), 32, False),  # few operations
        (Architecture("conv4", {"stem": 2}), 32, True),
        (Architecture("conv4"), 96, True),
        (Architecture("timm:mobilenetv2_100"), 224, False),  # depthwise
        (Architecture("timm:vit_small_patch16_224"), 224, False),
    ],
    ids=lambda value: value.name if isinstance(value, Architecture) else str(value),
)
def test_bf16_pays_for_dense_convolutions_with_enough_to_do(
    network: Architecture, size: int, *, expected: bool
) -> None:
    assert bf16_pays_on_cpus(network.build(), size) is expected


def test_as_many_images_pass_at_once_as_their_largest_map_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of 10 x 10 pixels the second layer's map is the largest: 20 channels of 100 numbers of 4 bytes.
    network = nn.Sequential(nn.Conv2d(3, 5, 1), nn.Conv2d(5, 20, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for room, expected in ((8000 * 40, 32), (8000 * 31, 16), (8000 * 3, 8), (1, 8)):
        monkeypatch.setattr(parts, "MAP_BYTES", room)
        assert images_at_once(network, images(1, 10)) == expected
    assert not any(module._forward_hooks for module in network.modules())


def test_parts_of_a_batch_pass_one_after_another_and_rows_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAP_BYTES", 1)
    network, sizes = TINY_RESNET.build().eval(), list[int]()
    network.register_forward_pre_hook(lambda _network, inputs: sizes.append(len(inputs[0])))
    batch, in_parts = images(19, 32), InParts(network)
    with torch.no_grad():
        rows = in_parts(batch)
        assert sizes == [1, 8, 8, 3]  # the first is measured
        assert torch.equal(in_parts(batch), rows)
        assert sizes[4:] == [8, 8, 3]
        torch.testing.assert_close(rows, network(batch), rtol=0, atol=1e-6)


def test_a_network_of_one_layer_passes_no_image_to_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAP_BYTES", 2 * 3 * 4 * 4 * 4 * 16)
    sizes = list[int]()
    network = nn.Flatten()
    network.register_forward_pre_hook(lambda _network, inputs: sizes.append(len(inputs[0])))
    assert torch.equal(InParts(network)(images(40, 4)), images(40, 4).flatten(1))
    assert sizes == [32, 8]
