"""Networks of images of any number of channels, and their preprocessing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from excb.checkpoint.coverage import blueprint
from excb.errors import UserError
from excb.files.records import RecordError
from excb.images.pixels import Pixels
from excb.networks.architecture import Architecture
from excb.networks.backbone import check_resolution, image_channels
from excb.networks.preprocessing import Preprocessing
from excb.networks.rules import preprocessing_from

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


def test_a_blueprint_has_the_channels() -> None:
    assert blueprint(SMALL[0].of_channels(5))["blocks.0.0.weight"].shape[1] == 5


def preprocessing(channels: int, **fields: Any) -> Preprocessing:
    means, stds = tuple(0.1 + np.arange(channels) / 20), tuple(0.2 + np.arange(channels) / 20)
    return Preprocessing(40, 32, means, stds, pixels=Pixels(channels), **fields)


@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
def test_every_channel_is_cut_as_one_of_a_colour_image(crop_mode: Any) -> None:
    values = np.random.default_rng(0).integers(0, 256, (50, 70, 6)).astype(np.uint8)
    whole, parts = preprocessing(6, crop_mode=crop_mode), list[torch.Tensor]()
    for three in (slice(0, 3), slice(3, 6)):
        colours = Preprocessing(40, 32, whole.mean[three], whole.std[three], crop_mode=crop_mode)
        parts.append(colours(np.ascontiguousarray(values[..., three])))
    assert torch.equal(whole(values), torch.cat(parts))


def test_eight_bit_images_in_memory_are_channels_already() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (40, 40)).astype(np.uint8)
    one, deep = preprocessing(1), Preprocessing(40, 32, pixels=Pixels(3, (0.0,), (4095.0,), "declared"))
    assert torch.equal(one(grey), one(Image.fromarray(grey)))
    assert torch.equal(one(grey), one(grey[..., None]))
    assert torch.equal(deep(Image.fromarray(grey)), Preprocessing(40, 32)(grey))
    assert torch.equal(
        deep(Image.fromarray(np.full((40, 40), 4095, np.uint16))), deep(np.full((40, 40), 255, np.uint8))
    )


def test_the_record_comes_back_and_old_ones_stay_as_they_are() -> None:
    assert preprocessing_from(preprocessing(12).to_dict()) == preprocessing(12)
    assert "pixels" not in Preprocessing().to_dict()
    stored = replace(preprocessing(12), pixels=Pixels(12, colours="stored"))
    assert stored.to_dict()["pixels"]["colours"] == "stored"
    assert preprocessing_from(stored.to_dict()) == stored
    stated = {"colours": "srgb", "orientation": "exif", "background": "dropped"}
    assert stated.keys().isdisjoint(preprocessing(12).to_dict()["pixels"])
    assert preprocessing_from({"pixels": stated}) == Preprocessing()


@pytest.mark.parametrize(
    "values",
    [
        {"mean": [0.5], "std": [0.5] * 3},
        {"mean": [0.5] * 4, "std": [0.5] * 4},
        {"mean": [0.5], "std": [0.5], "pixels": {"channels": 2, "low": [0], "high": [9], "origin": "declared"}},
        {"mean": [0.5], "std": [0.5], "pixels": {"channels": 1, "low": [9], "high": [0], "origin": "declared"}},
        {"mean": [0.5], "std": [0.5], "pixels": {"channels": 1, "low": [0], "high": [9], "origin": "guessed"}},
        {"pixels": {"colours": "display-p3"}},
        {"pixels": {"orientation": "stored"}},
        {"pixels": {"background": "white"}},
    ],
)
def test_records_that_contradict_themselves_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        preprocessing_from(values)


def test_images_of_other_channels_are_refused() -> None:
    with pytest.raises(UserError, match=r"12 channels is uint8 pixels \[H, W, 12\].*not uint8 \[9, 9, 3\]"):
        preprocessing(12)(np.zeros((9, 9, 3), np.uint8))
