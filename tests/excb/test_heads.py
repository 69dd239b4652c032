"""Projector and predictor: their layers, their first weights, and what they compute, written out."""

import math
from typing import Literal

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from excb.heads import MLP


def test_batchnorm_heads_are_linear_batchnorm_relu() -> None:
    head = MLP(6, 5, 4, layers=2, style="batchnorm", input_norm=True)
    hidden = [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert [type(module) for module in head] == [nn.BatchNorm1d, *hidden, *hidden, nn.Linear]
    shapes = [(module.in_features, module.out_features) for module in head if isinstance(module, nn.Linear)]
    assert shapes == [(6, 5), (5, 5), (5, 4)]
    assert [module.num_features for module in head if isinstance(module, nn.BatchNorm1d)] == [6, 5, 5]
    rows = torch.randn(9, 6)
    first, norm = head[0], head[2]
    assert isinstance(first, nn.BatchNorm1d)
    assert isinstance(norm, nn.BatchNorm1d)
    assert_close(first(rows).mean(0), torch.zeros(6), rtol=0, atol=1e-6)
    assert head(rows).shape == (9, 4)


def test_gelu_heads_have_no_batchnorm() -> None:
    head = MLP(6, 5, 4, layers=1, style="gelu")
    assert [type(module) for module in head] == [nn.Linear, nn.GELU, nn.Linear]
    assert [type(module) for module in MLP(6, 5, 4, layers=0, style="gelu")] == [nn.Linear]


def test_heads_start_truncated_normal_with_zero_biases() -> None:
    torch.manual_seed(0)
    for module in MLP(300, 200, 300, layers=2, style="gelu"):
        if isinstance(module, nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.02)
            assert abs(module.weight.mean().item()) < 5e-4
            beyond_one = (module.weight.abs() > 0.02).double().mean().item()
            assert beyond_one == pytest.approx(math.erfc(1 / math.sqrt(2)), rel=0.03)  # normal, not uniform
            assert not module.bias.any()


@pytest.mark.parametrize("output_norm", [False, True])
@pytest.mark.parametrize("style", ["batchnorm", "gelu"])
def test_heads_compute_what_is_written_here(style: Literal["batchnorm", "gelu"], output_norm: bool) -> None:
    torch.manual_seed(0)
    head = MLP(3, 5, 2, layers=2, style=style, input_norm=True, output_norm=output_norm).double()
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    values = dict(head.named_parameters())
    rows = torch.randn(7, 3, dtype=torch.float64)

    def normalised(x: torch.Tensor, place: int) -> torch.Tensor:
        unit = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
        return unit * values[f"{place}.weight"] + values[f"{place}.bias"]

    expected, place = normalised(rows, 0), 1
    for _ in range(2):
        expected = expected @ values[f"{place}.weight"].T + values[f"{place}.bias"]
        if style == "batchnorm":
            expected = normalised(expected, place + 1).clamp(min=0)
        else:
            expected = expected * (1 + torch.erf(expected / math.sqrt(2))) / 2
        place += 3 if style == "batchnorm" else 2
    expected = expected @ values[f"{place}.weight"].T + values[f"{place}.bias"]
    if output_norm:
        expected = (expected - expected.mean(0)) / (expected.var(0, correction=0) + 1e-5).sqrt()
    assert_close(head(rows), expected)


def test_no_hidden_layer_is_one_linear_map() -> None:
    head = MLP(4, 99, 3, layers=0, style="batchnorm")
    assert [tuple(value.shape) for value in head.parameters()] == [(3, 4), (3,)]
