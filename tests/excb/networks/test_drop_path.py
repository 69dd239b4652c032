"""Drop path by RNG keys: rates, scaling, what is dropped depends on names only; timm's networks with it."""

import importlib
from typing import Any

import pytest
import timm
import torch
from scipy import stats
from timm.layers import DropPath
from torch import Tensor, nn
from torch.nn import functional as F

from excb import seeding
from excb.networks.architecture import Architecture
from excb.networks.drop_path import SampleDropPath, drop_path_keys

pytestmark = pytest.mark.usefixtures("one_thread")

TINY_RESNET = Architecture("timm:resnet10t", {"channels": [8, 8, 16, 16], "stem_width": 4})
TINY_VIT = Architecture("timm:vit_tiny_patch16_224", {"depth": 4, "embed_dim": 24, "num_heads": 3})


def images(batch: int, side: int) -> Tensor:
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0))


def names(count: int, *, start: int = 0) -> Tensor:
    return seeding.fold_tensor(seeding.fold(seeding.Purpose.DROP_PATH, 0, 0), torch.arange(start, start + count))


def dropped(layer: SampleDropPath, row_keys: Tensor) -> Tensor:
    """Which of these rows a layer drops."""
    layer.row_keys = row_keys
    output = layer(torch.ones(len(row_keys), 2, 3))
    layer.row_keys = None
    assert ((output == 0).all((1, 2)) | (output != 0).all((1, 2))).all()  # whole rows only
    return output[:, 0, 0] == 0


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_of_dropped_rows(rate: float) -> None:
    count = int(dropped(SampleDropPath(rate, 2), names(20_000)).sum())
    assert stats.binomtest(count, 20_000, rate).pvalue > 1e-3


def test_rows_that_stay_are_scaled_so_that_the_mean_stays() -> None:
    layer = SampleDropPath(0.2, 0)
    layer.row_keys = names(20_000)
    branch = torch.rand(20_000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1
    output = layer(branch)
    kept = output[:, 0] != 0
    torch.testing.assert_close(output[kept], branch[kept] / 0.8)
    assert output.mean().item() == pytest.approx(branch.mean().item(), rel=0.02)


def test_layers_and_samples_drop_independently() -> None:
    table = torch.stack([dropped(SampleDropPath(0.5, layer), names(4000)).double() for layer in range(6)])
    correlations = torch.corrcoef(table)[torch.triu_indices(6, 6, 1).unbind()]
    assert correlations.abs().max().item() < 4 / 4000**0.5
    neighbours = torch.corrcoef(torch.stack([table[0, 1:], table[0, :-1]]))[0, 1]
    assert abs(neighbours.item()) < 4 / 4000**0.5


def test_what_is_dropped_depends_on_names_only() -> None:
    layer, row_keys = SampleDropPath(0.5, 3), names(64)
    expected = dropped(layer, row_keys)
    assert 0 < expected.sum() < 64
    torch.manual_seed(7)
    order = torch.randperm(64)
    assert torch.equal(dropped(SampleDropPath(0.5, 3), row_keys[order]), expected[order])
    assert torch.equal(dropped(layer, row_keys[5:6]), expected[5:6])
    # The definition, one name at a time.
    for row in range(64):
        name = seeding.fold(seeding.Purpose.DROP_PATH, 0, 0, row, 3)
        assert bool(expected[row]) == ((name >> 11) / 2**53 < 0.5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_branch_keeps_its_type(dtype: torch.dtype) -> None:
    layer = SampleDropPath(0.5, 0)
    layer.row_keys = names(8)
    output = layer(torch.ones(8, 2, 2, 2, dtype=dtype))
    assert output.dtype == dtype
    assert set(output.unique().tolist()) == {0.0, 2.0}


def test_evaluation_and_rate_zero_leave_the_branch_alone() -> None:
    branch = torch.randn(4, 3)
    assert SampleDropPath(0.5, 0).eval()(branch) is branch
    assert SampleDropPath(0.0, 0).train()(branch) is branch


def test_training_without_names_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="drop_path_keys"):
        SampleDropPath(0.5, 0)(torch.ones(2, 2))


class TestWithinBackbones:
    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("timm:resnet10t", TINY_RESNET.options),
            ("timm:vit_tiny_patch16_224", TINY_VIT.options),
            ("timm:mobilenetv3_small_050", {}),
            ("timm:convnext_atto", {}),
            ("timm:xcit_nano_12_p16_224", {}),
        ],
    )
    def test_every_drop_path_of_timms_is_replaced(self, name: str, options: dict[str, Any]) -> None:
        theirs = timm.create_model(name.removeprefix("timm:"), drop_path_rate=0.3, num_classes=0, **options)
        ours = Architecture(name, options).build(drop_path=0.3)
        rates = {key: module.drop_prob for key, module in theirs.named_modules() if isinstance(module, DropPath)}
        replaced = {key: module for key, module in ours.named_modules() if isinstance(module, SampleDropPath)}
        assert {key: module.rate for key, module in replaced.items()} == rates
        assert len(rates) >= 2
        assert max(rates.values()) > 0.2
        assert not any(isinstance(module, DropPath) for module in ours.modules())
        numbers = [module.layer for module in replaced.values()]
        assert sorted(numbers) == list(range(len(numbers)))
        assert ours.state_dict().keys() == theirs.state_dict().keys()

    def test_without_drop_path_there_is_none(self) -> None:
        for architecture in (TINY_RESNET, TINY_VIT):
            kinds = {type(module) for module in architecture.build().modules()}
            assert kinds.isdisjoint({SampleDropPath, DropPath})

    def test_in_timms_place_it_computes_what_timms_computes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Timm's own layers, given the same choices of rows, give the same features."""
        rate, count = 0.4, 6
        torch.manual_seed(0)
        ours = TINY_VIT.build(drop_path=rate)
        theirs = timm.create_model("vit_tiny_patch16_224", drop_path_rate=rate, num_classes=0, **TINY_VIT.options)
        theirs.load_state_dict(ours.state_dict())
        layers = [module.layer for module in ours.modules() if isinstance(module, SampleDropPath)]
        calls = iter(layers)

        def chosen(x: Tensor, drop_prob: float, training: bool, scale_by_keep: bool) -> Tensor:
            assert training
            assert scale_by_keep
            layer = next(calls)
            row_keys = [seeding.fold(seeding.Purpose.DROP_PATH, 0, 0, sample, 5, layer) for sample in range(count)]
            keep = torch.tensor([float((name >> 11) / 2**53 >= drop_prob) for name in row_keys])
            return x * keep.view(-1, 1, 1) / (1 - drop_prob)

        monkeypatch.setattr(importlib.import_module("timm.layers.drop"), "drop_path", chosen)
        with drop_path_keys(ours, names(count), [5]):
            output = ours(images(count, 224))
        torch.testing.assert_close(output, theirs(images(count, 224)), rtol=1e-4, atol=1e-5)
        assert next(calls, None) is None
        assert (output - ours.eval()(images(count, 224))).abs().max() > 1e-3  # something was dropped

    def test_views_are_named_one_after_the_other(self) -> None:
        network = nn.Sequential(SampleDropPath(0.5, 0), SampleDropPath(0.0, 1))
        with drop_path_keys(network, names(40), [3, 1]):
            output = network(torch.ones(80, 1)).flatten() == 0
        for row, (view, sample) in enumerate((view, sample) for view in (3, 1) for sample in range(40)):
            name = seeding.fold(seeding.Purpose.DROP_PATH, 0, 0, sample, view, 0)
            assert bool(output[row]) == ((name >> 11) / 2**53 < 0.5)

    def test_names_are_forgotten_afterwards(self) -> None:
        layer = SampleDropPath(0.5, 0)
        with drop_path_keys(layer, names(4), [0]):
            layer(torch.ones(4, 1))
        with pytest.raises(KeyError), drop_path_keys(layer, names(4), [0]):
            raise KeyError
        with pytest.raises(RuntimeError, match="drop_path_keys"):
            layer(torch.ones(4, 1))

    def test_without_samples_nothing_is_named(self) -> None:
        network = nn.Sequential(nn.Linear(1, 1), SampleDropPath(0.5, 0))
        with pytest.raises(RuntimeError, match="drop_path_keys"), drop_path_keys(network, None, [0]):
            network(torch.ones(4, 1))
        with drop_path_keys(network[0], None, [0]):  # a network without drop path needs no names
            assert network[0](torch.ones(4, 1)).shape == (4, 1)

    def test_evaluation_ignores_it(self) -> None:
        torch.manual_seed(0)
        plain = TINY_VIT.build().eval()
        dropping = TINY_VIT.build(drop_path=0.5).eval()
        dropping.load_state_dict(plain.state_dict())
        with torch.no_grad():
            assert torch.equal(dropping(images(2, 32)), plain(images(2, 32)))

    def test_gradients_reach_only_the_rows_that_stay(self) -> None:
        layer = SampleDropPath(0.5, 0)
        layer.row_keys = names(32)
        branch = torch.ones(32, 2, requires_grad=True)
        F.relu(layer(branch)).sum().backward()
        assert branch.grad is not None
        assert torch.equal(branch.grad[:, 0] == 0, dropped(SampleDropPath(0.5, 0), names(32)))
