"""Backbones by name against torchvision and timm themselves; widths; refusals in one line; drop path by name."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import torchvision
from scipy import stats
from timm.layers import DropPath
from torch import Tensor, nn
from torch.nn import functional as F

from excb import seeding
from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.backbone import (
    SampleDropPath,
    check_resolution,
    drop_path_keys,
    evaluating,
    feature_width,
    has_batchnorm,
)

pytestmark = pytest.mark.usefixtures("one_thread")

# Smallest members of their families: name, side of the images, width of the features, has BatchNorm.
SMALL: list[tuple[str, int, int, bool]] = [
    ("resnet18", 32, 512, True),
    ("vit_tiny", 32, 192, False),
    ("timm:resnet10t", 32, 512, True),
    ("timm:vit_tiny_patch16_224", 32, 192, False),
    ("timm:mobilenetv3_small_050", 32, 1024, True),  # a hidden layer behind the pooling is wider than `num_features`
    ("timm:convnext_atto", 32, 320, False),
]
TINY_RESNET = Architecture("timm:resnet10t", {"channels": [8, 8, 16, 16], "stem_width": 4})
TINY_VIT = Architecture("timm:vit_tiny_patch16_224", {"depth": 4, "embed_dim": 24, "num_heads": 3})


def images(batch: int, side: int) -> Tensor:
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0))


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message


# ---------------------------------------------------------------------------------------------------------------------
# Which network a name gives
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet101"])
def test_resnets_have_torchvisions_tensors_without_classifier(name: str) -> None:
    with torch.device("meta"):
        network, other = Architecture(name).build(), getattr(torchvision.models, name)()
    ours, theirs = network.state_dict(), other.state_dict()
    assert feature_width(network) == other.fc.in_features
    expected = {key: value.shape for key, value in theirs.items() if not key.startswith("fc.")}
    assert {key: value.shape for key, value in ours.items()} == expected
    assert len(theirs) - len(expected) == 2
    if name == "resnet50":
        assert len(ours) == 318


def test_resnet_equals_torchvisions_up_to_the_classifier() -> None:
    ours, theirs = Architecture("resnet18").build().eval(), torchvision.models.resnet18().eval()
    assert theirs.load_state_dict(ours.state_dict(), strict=False).missing_keys == ["fc.weight", "fc.bias"]
    features: list[Tensor] = []
    theirs.fc.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    with torch.no_grad():
        output = ours(images(2, 64))
        theirs(images(2, 64))
    assert torch.equal(output, features[0])


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_the_last_batchnorm_of_every_block_starts_at_zero(name: str) -> None:
    network = Architecture(name).build()
    last = "bn3" if name == "resnet50" else "bn2"
    norms = {key: module for key, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)}
    zero = {key for key, module in norms.items() if not module.weight.any()}
    assert zero == {key for key in norms if key.startswith("layer") and key.endswith(last)}
    assert len(zero) == {"resnet18": 8, "resnet50": 16}[name]


def test_the_last_batchnorms_start_at_one_if_wanted() -> None:
    network = Architecture("resnet18", {"zero_init_residual": False}).build()
    assert all((module.weight == 1).all() for module in network.modules() if isinstance(module, nn.BatchNorm2d))


def test_vit_small_is_timms_network_of_dinos_shape() -> None:
    ours = Architecture("vit_small").build().eval()
    theirs = timm.create_model("vit_small_patch16_224", num_classes=0).eval()
    theirs.load_state_dict(ours.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(ours(images(1, 224)), theirs(images(1, 224)), rtol=1e-5, atol=1e-5)
    blocks = ours.get_submodule("blocks")
    assert len(list(blocks.children())) == 12
    assert {module.num_heads for module in blocks.modules() if hasattr(module, "num_heads")} == {6}
    assert {module.eps for module in ours.modules() if isinstance(module, nn.LayerNorm)} == {1e-6}
    assert ours.get_submodule("blocks.0.attn.qkv").bias is not None
    # DINO's ViT-S/16 without its head.
    assert sum(parameter.numel() for parameter in ours.parameters()) == 21_665_664
    assert feature_width(ours) == 384


def test_a_vit_takes_views_of_two_sizes() -> None:
    network = TINY_VIT.build().eval()
    with torch.no_grad():
        outputs = [network(images(2, side)) for side in (224, 96)]
    assert [tuple(output.shape) for output in outputs] == [(2, 24), (2, 24)]


@pytest.mark.parametrize(("name", "side", "width", "batchnorm"), SMALL, ids=str)
def test_features_have_the_width_that_is_told(name: str, side: int, width: int, batchnorm: bool) -> None:
    network = Architecture(name).build().eval()
    with torch.no_grad():
        output = network(images(2, side))
    assert output.shape == (2, width)
    assert feature_width(network) == width
    assert has_batchnorm(network) == batchnorm


def test_timm_networks_are_timms_own() -> None:
    ours = Architecture("timm:resnet10t").build().eval()
    theirs = timm.create_model("resnet10t", num_classes=0).eval()
    theirs.load_state_dict(ours.state_dict())
    with torch.no_grad():
        assert torch.equal(ours(images(2, 32)), theirs(images(2, 32)))


def test_options_reach_timm() -> None:
    network = TINY_RESNET.build()
    assert feature_width(network) == 16
    assert sum(parameter.numel() for parameter in network.parameters()) < 20_000


@pytest.mark.parametrize("architecture", [TINY_RESNET, TINY_VIT, Architecture("resnet18")])
def test_weights_are_a_function_of_torchs_seed(architecture: Architecture) -> None:
    networks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        networks.append(architecture.build().state_dict())
    first, again, other = networks
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert any(not torch.equal(value, other[name]) for name, value in first.items())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", None),
        ("vit_base", "vit_base_patch16_224"),
        ("timm:resnet18", "resnet18"),
        ("timm:vit_small", "vit_small"),
        ("nothing", None),
    ],
)
def test_name_that_timm_knows(name: str, expected: str | None) -> None:
    assert Architecture(name).timm_name == expected


def test_names_of_batchnorm() -> None:
    norms: list[Callable[[int], nn.Module]] = [nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm]
    assert all(has_batchnorm(nn.Sequential(nn.Sequential(norm(3)))) for norm in norms)
    assert not any(has_batchnorm(nn.Sequential(norm)) for norm in (nn.GroupNorm(1, 3), nn.LayerNorm(3)))


# ---------------------------------------------------------------------------------------------------------------------
# Refusals
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("resnet5", "resnet50"),
        ("vit_smal", "vit_small"),
        ("timm:resnet10", "timm:resnet10t"),
        ("timm:convnext_ato", "timm:convnext_atto"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(UserError) as error:
        Architecture(name).build()
    assert one_line(error) == f"no backbone is called '{name}'; did you mean '{nearest}'?"


@pytest.mark.parametrize("name", ["qqqqqqqq", "", "timm:", "timm:../secret", "hf-hub:timm/resnet10t"])
def test_a_name_like_no_other_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="no backbone is called") as error:
        Architecture(name).build()
    one_line(error)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("timm:resnet10t", {"nonsense": 3}),
        ("timm:resnet10t", {"channels": "wide"}),
        ("timm:vit_tiny_patch16_224", {"nonsense": 3}),
        ("timm:vit_tiny_patch16_224", {"embed_dim": 100}),  # not a multiple of the heads
        ("vit_tiny", {"patch_size": 0}),
        ("timm:resnet10t", {"num_classes": 10}),  # features, never scores of classes
        ("timm:resnet10t", {"channels": [8, 16, 24, 32, [32]]}),  # a fifth one, which is told to be the width
        ("timm:resnet10t", {"channels": [8, 16, 24, 32, 2**40]}),
        ("timm:resnet10t", {"channels": [8, 16, 24, 32, -1]}),
    ],
    ids=str,
)
def test_options_that_a_network_does_not_take_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"does not take these options: .") as error:
        Architecture(name, options).build()
    one_line(error)


def test_a_refusal_of_many_lines_becomes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("first\nsecond")

    monkeypatch.setattr(timm, "create_model", refuse)
    with pytest.raises(UserError, match=r"these options: first$") as error:
        TINY_RESNET.build()
    one_line(error)


def test_a_network_without_drop_path_refuses_it() -> None:
    with pytest.raises(UserError, match="drop_path_rate") as error:
        Architecture("timm:ghostnet_050").build(drop_path=0.1)
    one_line(error)


@pytest.mark.parametrize(("options", "drop_path"), [({"width": 3}, 0.0), ({}, 0.1)])
def test_torchvisions_resnets_take_no_options(options: dict[str, Any], drop_path: float) -> None:
    with pytest.raises(UserError, match="timm:resnet18") as error:
        Architecture("resnet18", options).build(drop_path=drop_path)
    one_line(error)


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
def test_a_resolution_that_does_not_fit_is_the_users_to_mend(
    architecture: Architecture, sizes: list[int], wrong: int
) -> None:
    network = architecture.build()
    network.get_submodule("norm").eval()
    before = modes(network)
    with pytest.raises(UserError, match=f"{wrong} x {wrong} pixels") as error:
        check_resolution(network, sizes)
    assert "choose other view sizes" in one_line(error)
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


# ---------------------------------------------------------------------------------------------------------------------
# Drop path
# ---------------------------------------------------------------------------------------------------------------------


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
