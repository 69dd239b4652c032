"""CAPI's ViT against its definition, written out token by token; and what it gives to dense tasks."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.capi import Attention, Capi, Rotary
from excb.networks.outputs import output

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = {"width": 16, "depth": 4, "heads": 2, "patch": 4, "registers": 4}


@pytest.fixture
def network() -> Capi:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Capi(**SIZES).eval()


def turned(x: Tensor, point: Tensor) -> Tensor:
    """One head's channels at one point: channel c and c + half are one plane, but each turns by an angle of its own."""
    half, quarter = len(x) // 2, len(x) // 4
    out = torch.empty_like(x)
    for channel in range(len(x)):
        frequency = 2 * math.pi * 7 * (7 / 7e-4) ** (-(channel % quarter) / max(1, quarter - 1))
        angle = torch.as_tensor(frequency * point[channel // half])
        partner = -x[channel + half] if channel < half else x[channel - half]
        out[channel] = x[channel] * angle.cos() + partner * angle.sin()
    return out


def test_rotary_positions_turn_half_of_the_channels_by_rows_and_half_by_columns() -> None:
    x, points = torch.randn(1, 1, 5, 8), torch.rand(5, 2)
    expected = torch.stack([turned(x[0, 0, token], points[token]) for token in range(5)])
    torch.testing.assert_close(Rotary(8)(x, points)[0, 0], expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_attention_token_by_token() -> None:
    attention, here, there = Attention(16, 2), torch.rand(3, 2), torch.rand(4, 2)
    x, others = torch.randn(1, 3, 16), torch.randn(1, 4, 16)
    heads = []
    for head in (slice(0, 8), slice(8, 16)):
        q, k, v = (attention.q(x)[0, :, head], attention.k(others)[0, :, head], attention.v(others)[0, :, head])
        scores = [[turned(q[i], here[i]) @ turned(k[j], there[j]) / 8**0.5 for j in range(4)] for i in range(3)]
        heads.append(torch.tensor(scores).softmax(1) @ v)
    expected = attention.proj(torch.cat(heads, 1))
    torch.testing.assert_close(attention(x, here, others, there)[0], expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_features_are_the_mean_of_what_the_first_block_of_the_predictor_gives(network: Capi) -> None:
    images = torch.randn(2, 3, 8, 12)
    patches = network.patch_embed(images).flatten(2).transpose(1, 2)
    tokens = torch.cat([network.registers.expand(2, -1, -1), patches], 1)
    places = torch.tensor([(row, column / 2) for row in (0, 1) for column in range(3)])
    corners = torch.tensor([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)])  # four registers have one point per edge
    points = torch.cat([corners, places])
    for block in network.blocks:
        tokens = block(tokens, points)
    rms = tokens / (tokens.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    guesses = network.pool(network.mask_token.expand(2, 6, -1), places, rms, points)
    expected = (guesses / (guesses.square().mean(-1, keepdim=True) + 1e-5).sqrt()).mean(1)
    torch.testing.assert_close(network(images), expected, rtol=1e-4, atol=1e-5)
    dense = output(network, "map")(images)
    torch.testing.assert_close(dense, rms[:, 4:].transpose(1, 2).unflatten(2, (2, 3)), rtol=1e-4, atol=1e-5)


def test_maps_and_pyramids_of_images_of_any_size(network: Capi) -> None:
    assert output(network, "map")(torch.zeros(1, 3, 20, 32)).shape == (1, 16, 5, 8)
    assert [tuple(each.shape[2:]) for each in output(network, "pyramid")(torch.zeros(1, 3, 32, 32))] == [
        (8, 8),
        (4, 4),
        (2, 2),
        (1, 1),
    ]
    assert network(torch.zeros(1, 3, 4, 4)).isfinite().all()
    with pytest.raises(UserError, match="choose pooled features"):
        output(network, "last4")
    with pytest.raises(UserError, match="NCHW"):
        network.forward_intermediates(torch.zeros(1, 3, 8, 8), indices=[0], output_fmt="NLC")


@pytest.mark.parametrize(
    "options", [{"width": 20}, {"registers": 6}, {"depth": 0}, {"heads": "two"}, {"patch": 1 << 40}]
)
def test_sizes_that_do_not_fit_are_one_line(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="capi takes"):
        Architecture("capi", options).build()


def test_it_takes_its_own_options_only() -> None:
    with pytest.raises(UserError, match="does not take num_heads: it takes width, depth, heads, patch, registers"):
        Architecture("capi", {"num_heads": 4}).build()
    with pytest.raises(UserError, match="does not take drop_path"):
        Architecture("capi").build(drop_path=0.1)
    with torch.device("meta"):
        network = Architecture("capi").build()
    assert sum(parameter.numel() for parameter in network.parameters()) == 315_247_744
