"""Tests of ViTs' position embeddings at other resolutions: DINO's interpolation against its description, by cell."""

import copy
import pickle
from itertools import product
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor

from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.outputs import LastClassTokens, resampled, sized

OPTIONS: dict[str, Any] = {"embed_dim": 12, "depth": 4, "num_heads": 2, "patch_size": 8, "img_size": 32}
DINO = {"position_interpolation": "dino"}


def vit(**options: Any) -> Any:
    torch.manual_seed(0)
    network: Any = Architecture("vit_tiny", OPTIONS | options).build().eval()
    torch.nn.init.normal_(network.pos_embed)
    return network


def kernel(distance: float) -> float:
    """The cubic convolution kernel (Keys, 1981) with a = -0.75, as torch's bicubic has it."""
    a, x = -0.75, abs(distance)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def as_dino_describes(grid: np.ndarray, new: tuple[int, int]) -> np.ndarray:
    """Bicubic interpolation [H, W, D] -> [h, w, D] by the scales (h + 0.1) / H and (w + 0.1) / W, without antialiasing.

    A cell's centre is where the scale takes it; each cell is a sum over its 4 x 4 neighbours, repeated at the border.
    """
    old, result = grid.shape[:2], np.zeros((*new, grid.shape[2]))
    for cell in product(*map(range, new)):
        places = [(index + 0.5) * had / (has + 0.1) - 0.5 for index, had, has in zip(cell, old, new, strict=True)]
        for steps in product(range(-1, 3), repeat=2):
            near = [int(np.floor(place)) + step for place, step in zip(places, steps, strict=True)]
            weight = np.prod([kernel(place - index) for place, index in zip(places, near, strict=True)])
            inside = tuple(min(max(index, 0), had - 1) for index, had in zip(near, old, strict=True))
            result[cell] += weight * grid[inside]
    return result


@pytest.mark.parametrize("prefix", [{}, {"reg_tokens": 2}, {"reg_tokens": 1, "no_embed_class": True}])
@pytest.mark.parametrize("side", [(16, 16), (48, 48), (16, 64), (64, 16), (24, 40)])
def test_features_are_those_of_embeddings_interpolated_as_dino_describes(
    side: tuple[int, int], prefix: dict[str, Any]
) -> None:
    network = vit(**DINO, **prefix)
    first = 0 if prefix.get("no_embed_class") else network.num_prefix_tokens
    embeddings: Tensor = network.pos_embed.detach()
    own = embeddings[0, first:].unflatten(0, (4, 4)).double().numpy()
    moved = torch.from_numpy(as_dino_describes(own, (side[0] // 8, side[1] // 8))).float().flatten(0, 1)
    # timm's network for just this size, which interpolates nothing.
    fixed: Any = timm.create_model(
        "vit_tiny_patch16_224", num_classes=0, **OPTIONS | {"img_size": side, "dynamic_img_size": False}, **prefix
    ).eval()
    fixed.load_state_dict(network.state_dict() | {"pos_embed": torch.cat([embeddings[:, :first], moved[None]], 1)})
    images = torch.randn(2, 3, *side)
    with torch.no_grad():
        expected = fixed.forward_features(images)
        torch.testing.assert_close(network.forward_features(images), expected, rtol=1e-4, atol=1e-5)
        last, of_fixed = LastClassTokens(network)(images), LastClassTokens(fixed)(images)
        torch.testing.assert_close(last, of_fixed, rtol=1e-4, atol=1e-5)
        assert (vit(**prefix).forward_features(images) - expected).abs().max() > 0.05  # timm's are others


def test_the_own_size_interpolates_nothing_and_the_weights_are_the_same() -> None:
    dino, usual, images = vit(**DINO), vit(), torch.randn(2, 3, 32, 32)
    assert dino.state_dict().keys() == usual.state_dict().keys()
    with torch.no_grad():
        assert torch.equal(dino(images), usual(images))


def test_loading_for_another_size_interpolates_as_the_network_does_at_every_pass() -> None:
    network, other = vit(**DINO), sized(Architecture("vit_tiny", OPTIONS | DINO), 48)
    assert other.positions == "dino"
    fixed: Any = other.build().eval()
    fixed.load_state_dict(resampled(network.state_dict(), fixed))
    images = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        torch.testing.assert_close(fixed(images), network(images))


def test_gradients_copies_and_a_network_of_one_size() -> None:
    network = vit(**DINO)
    images = torch.randn(2, 3, 16, 16)
    network(images).sum().backward()
    assert network.pos_embed.grad.abs().sum() > 0
    with torch.no_grad():
        for twin in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
            assert torch.equal(twin(images), network(images))
        one_size = vit(**DINO, dynamic_img_size=False)
        assert torch.equal(one_size(torch.ones(1, 3, 32, 32)), network(torch.ones(1, 3, 32, 32)))
    double = vit(**DINO).double()
    assert double(images.double()).dtype is torch.float64


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("resnet18", DINO, "it takes zero_init_residual, in_chans; use timm:resnet18 for others"),
        ("timm:resnet10t", DINO, "only timm's plain ViTs have position embeddings"),
        ("timm:deit_tiny_distilled_patch16_224", DINO, "only timm's plain ViTs have position embeddings"),
        ("vit_tiny", {"pos_embed": "none", **DINO}, "only timm's plain ViTs have position embeddings"),
        ("vit_tiny", {"position_interpolation": "bilinear"}, "is antialiased or dino, not 'bilinear'"),
        ("vit_tiny", {"position_interpolation": ["dino"]}, "is antialiased or dino"),
    ],
)
def test_other_networks_and_other_ways_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Architecture(name, options).build()
