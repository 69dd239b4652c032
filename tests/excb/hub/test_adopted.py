"""A network of one's own as a backbone: as it is, with its own transform, and told clearly where that cannot be."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import transforms
from torchvision.transforms._presets import ImageClassification

import excb
from excb.errors import UserError
from excb.hub.adopted import OwnTransform, adopt
from excb.networks.preprocessing import Preprocessing


class Means(nn.Module):
    """[B, 3, H, W] -> [B, 3]."""

    def __init__(self, transform: Any = None) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        if transform is not None:
            self.transform = transform

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)) * self.scale


def ours(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image.resize((12, 8)))).permute(2, 0, 1) / 255


def test_a_backbone_is_itself() -> None:
    backbone = excb.load("tiny_grocery")
    assert adopt(backbone) is backbone
    with pytest.raises(UserError, match="this backbone returns a map, and one vector an image is needed"):
        adopt(excb.load("tiny_grocery", features="map"))


def test_a_module_keeps_its_mode_its_weights_and_its_transform() -> None:
    network = Means(ours).train()
    backbone = adopt(network)
    assert (backbone.width, backbone.network, network.training) == (3, network, True)
    picture = Image.new("RGB", (30, 20), (255, 51, 0))
    torch.testing.assert_close(backbone.embed([picture, np.asarray(picture)]), torch.tensor([[1.0, 0.4, 0.0]] * 2))
    network.scale.data *= 2  # it is the network, not a copy
    torch.testing.assert_close(backbone.embed(picture), torch.tensor([[2.0, 0.8, 0.0]]))
    assert sum(len(list(part.parameters(recurse=False))) for part in backbone.modules()) == 1


@pytest.mark.parametrize(
    ("transform", "side", "known"),
    [
        (ours, 12, False),
        (ImageClassification(crop_size=24, resize_size=32), 24, True),
        (transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor()]), 16, False),
        (
            transforms.Compose(
                [transforms.Resize((16, 16)), transforms.ToTensor(), transforms.Normalize([0.1] * 3, [0.5] * 3)]
            ),
            16,
            True,
        ),
    ],
)
def test_what_can_be_seen_of_a_transform(transform: Callable[[Any], Any], side: int, known: bool) -> None:
    seen = adopt(Means(transform)).transform
    assert isinstance(seen, OwnTransform)
    assert (seen.crop, seen.normalisation_known) == (side, known)
    assert "transform" in seen.to_dict()
    picture = Image.new("RGB", (40, 30), "red")
    assert torch.equal(seen(picture), transform(picture))


def test_a_preprocessing_is_a_transform() -> None:
    assert adopt(Means(Preprocessing(16, 8))).transform == Preprocessing(16, 8)


class Tokens(Means):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(2)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Means(), "this Means has no transform: set model.transform = f, where f turns a PIL image into"),
        ("resnet", "a network is a name, a path, a Backbone or an nn.Module, not 'resnet'"),
        (Means(np.asarray), r"must give a float tensor \[3, H, W\] of an image, and gave a ndarray"),
        (Means(lambda image: ours(image)[None]), r"and gave torch.float32 \[1, 3, 8, 12\]"),
        (Tokens(ours), r"a vector \[1, D\] is needed for an image, and this Tokens gave \[1, 3, 96\]: pool its output"),
    ],
)
def test_what_cannot_be_a_backbone_is_told_clearly(model: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        adopt(model)


def test_a_network_that_refuses_its_input() -> None:
    network = nn.Sequential(nn.Conv2d(4, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network.transform = ours  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"this Sequential does not take what its transform gives, \[1, 3, 8, 12\]"):
        adopt(network)
