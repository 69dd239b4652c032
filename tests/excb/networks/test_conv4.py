"""conv4: its shape, its options, and what it refuses."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.backbone import check_resolution, feature_width
from excb.networks.outputs import output


def test_conv4_is_four_convolutions_and_a_mean() -> None:
    network = Architecture("conv4").build().eval()
    images = torch.randn(2, 3, 32, 32)
    state, rows = network.state_dict(), images
    for layer, (stride, padding) in enumerate(((4, 0), (2, 1), (1, 1), (2, 1))):
        rows = F.conv2d(rows, state[f"blocks.{layer}.0.weight"], stride=stride, padding=padding)
        rows = (rows / (1 + 1e-5) ** 0.5).clamp(min=0)  # BatchNorm with its first statistics
    torch.testing.assert_close(network(images), rows.mean((2, 3)), rtol=1e-5, atol=1e-5)
    assert feature_width(network) == 256
    assert sum(parameter.numel() for parameter in network.parameters()) == 275_024


@pytest.mark.parametrize(("stem", "first_stride"), [(2, 2), (1, 1)])
def test_a_finer_stem_keeps_cells_and_pools_them_later(stem: int, first_stride: int) -> None:
    network = Architecture("conv4", {"stem": stem}).build().eval()
    images = torch.randn(2, 3, 32, 32)
    state, rows = network.state_dict(), images
    for layer in range(4):
        rows = F.conv2d(rows, state[f"blocks.{layer}.0.weight"], stride=1 if layer else first_stride, padding=1)
        rows = (rows / (1 + 1e-5) ** 0.5).clamp(min=0)
        if layer < 3 and (layer or stem == 1):
            rows = F.max_pool2d(rows, 2)
    assert rows.shape[-2:] == (4, 4)
    torch.testing.assert_close(network(images), rows.mean((2, 3)), rtol=1e-5, atol=1e-5)
    maps = output(network, "map")
    assert maps.strides == (8,)
    assert maps(images).shape == (2, 256, 4, 4)


def test_the_default_stem_loads_what_was_trained_before_there_were_others() -> None:
    before, now = Architecture("conv4").build().state_dict(), Architecture("conv4", {"stem": 4}).build().state_dict()
    assert {name: value.shape for name, value in before.items()} == {name: value.shape for name, value in now.items()}


@pytest.mark.parametrize("stem", [4, 2, 1])
@pytest.mark.parametrize("size", [16, 24, 32, 33, 64, 96])
def test_conv4_takes_images_of_any_size(size: int, stem: int) -> None:
    check_resolution(Architecture("conv4", {"stem": stem}).build(), [size])


def test_widths_are_an_option() -> None:
    network = Architecture("conv4", {"widths": [8, 8, 16, 12]}).build()
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 12)


@pytest.mark.parametrize(
    "options",
    [{"widths": [1, 2, 3]}, {"widths": 8}, {"widths": [8, 8, 8, 0]}, {"widths": [1, 1, 1, 10**9]}, {"depth": 4}],
)
def test_other_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="widths"):
        Architecture("conv4", options).build()


@pytest.mark.parametrize("stem", [0, 3, True, "fine", [1]])
def test_other_stems_are_refused(stem: Any) -> None:
    with pytest.raises(UserError, match="stem of stride 4, 2 or 1"):
        Architecture("conv4", {"stem": stem}).build()


def test_drop_path_is_refused() -> None:
    with pytest.raises(UserError, match="does not take drop_path"):
        Architecture("conv4").build(drop_path=0.1)
