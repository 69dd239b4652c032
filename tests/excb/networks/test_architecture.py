"""Architectures by name against torchvision and timm themselves: tensors, widths, options, one-line refusals."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.backbone import feature_width, has_batchnorm

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
