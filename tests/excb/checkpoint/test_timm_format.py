"""Tests of timm's `config.json`: timm builds our networks and inputs out of ours, and we theirs out of theirs."""

import json
import math
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.data import create_transform, resolve_data_config, resolve_model_data_config
from timm.models import save_for_hf

from excb.checkpoint import timm_format
from excb.networks.architecture import TIMM_NAMES, Architecture
from excb.networks.backbone import feature_width
from excb.networks.preprocessing import Preprocessing
from tests.run_files import features, photograph, pictures

of_its_own_inputs = pytest.mark.skipif(
    "data_config" not in signature(save_for_hf).parameters,
    reason="timm before 1.0.30 writes the inputs of a network's class, not its own",
)

TINY: dict[str, Any] = {"embed_dim": 12, "depth": 1, "num_heads": 3}


def config_for(name: str, options: dict[str, Any] | None = None, **preprocessing: Any) -> dict[str, Any]:
    found = timm_format.config_for(Architecture(name, options or {}), Preprocessing(**preprocessing), 12)
    assert json.loads(json.dumps(found)) == found
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Ours for timm
# ---------------------------------------------------------------------------------------------------------------------


def test_torchvisions_resnets_have_timms_names() -> None:
    assert config_for("resnet50") == {
        "architecture": "resnet50",
        "num_classes": 0,
        "num_features": 12,
        "pretrained_cfg": {
            "num_classes": 0,
            "input_size": [3, 224, 224],
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
            "crop_pct": 0.875,
            "interpolation": "bilinear",
            "crop_mode": "center",
            "classifier": "fc",
            "first_conv": "conv1",
        },
        "model_args": {},
    }
    assert config_for("resnet50", {"zero_init_residual": False})["model_args"] == {}  # torchvision's own option


@pytest.mark.parametrize(("name", "heads"), [("vit_tiny", 3), ("vit_small", 6), ("vit_base", 12)])
def test_vits_state_their_number_of_heads(name: str, heads: int) -> None:
    """It is the one thing about a ViT that no tensor's shape tells."""
    expected = {"num_heads": heads, "dynamic_img_size": True, "img_size": 224}
    assert config_for(name)["architecture"] == TIMM_NAMES[name]
    assert config_for(name)["model_args"] == expected
    assert config_for(name, {"num_heads": 12})["model_args"] == expected | {"num_heads": 12}  # MoCo-v3's ViT-S


def test_random_numbers_are_not_drawn() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    config_for("vit_tiny", TINY)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("resize", "crop"),
    [(256, 224), (110, 96), (64, 64), (93, 64), (99, 57), (118, 96), (187, 96), (40, 64)],  # several are one off
)
def test_timm_prepares_images_as_the_checkpoint_does(resize: int, crop: int) -> None:
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    for interpolation in ("bilinear", "bicubic"):
        preprocessing = Preprocessing(resize, crop, mean, std, interpolation)
        found = resolve_data_config(pretrained_cfg=config_for("resnet18", **vars(preprocessing))["pretrained_cfg"])
        assert (tuple(found["mean"]), tuple(found["std"])) == (mean, std)
        assert tuple(found["input_size"]) == (3, crop, crop)
        assert found["interpolation"] == interpolation
        assert found["crop_pct"] == pytest.approx(crop / resize, rel=1e-12)
        assert math.floor(crop / found["crop_pct"]) == resize  # as timm.data.transforms_factory rounds
        image = photograph(120)
        transform = create_transform(**found, is_training=False)
        torch.testing.assert_close(transform(image), preprocessing(image), rtol=0, atol=1e-6)


def test_every_resize_survives_timms_rounding() -> None:
    for crop in range(1, 400, 3):
        for resize in range(1, 600, 7):
            assert math.floor(crop / timm_format._crop_share(crop, resize)) == resize


# ---------------------------------------------------------------------------------------------------------------------
# timm's for us
# ---------------------------------------------------------------------------------------------------------------------


def timms_folder(folder: Path, name: str, *, data: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Write what timm itself pushes to the hub, and give its config.json."""
    torch.manual_seed(1)
    network = timm.create_model(name, num_classes=7, **options)
    inputs = {} if data is None else {"data_config": data}
    save_for_hf(network, str(folder), model_args=options, safe_serialization=True, **inputs)
    found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return found


def check(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """timm's network and inputs out of the folder, against ours out of the block."""
    block = timm_format.block_of(config)
    architecture, preprocessing = Architecture(**block["architecture"]), Preprocessing(**block["preprocessing"])
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0).eval()
    ours = architecture.build().eval()
    dropped = timm_format.classifiers(config["architecture"])
    tensors = load_file(folder / "model.safetensors")
    assert sum(name.startswith(dropped) for name in tensors) == 2 * len(dropped)  # weight and bias
    ours.load_state_dict({name: value for name, value in tensors.items() if not name.startswith(dropped)})
    side = preprocessing.crop
    assert torch.equal(features(ours, pictures(2, side)), features(theirs, pictures(2, side)))
    assert feature_width(ours) == config["num_features"]
    transform = create_transform(**resolve_model_data_config(theirs), is_training=False)
    torch.testing.assert_close(transform(photograph()), preprocessing(photograph()), rtol=0, atol=1e-6)
    return block


@pytest.mark.parametrize(
    ("name", "options", "ours"),
    [
        ("resnet10t", {"channels": [8, 16, 24, 32], "stem_width": 8}, {}),
        ("convnext_atto", {"dims": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}, {}),
        ("vit_tiny_patch16_224", TINY, {}),
        pytest.param("vit_tiny_patch16_224", TINY | {"img_size": 64}, {}, marks=of_its_own_inputs),
        ("vit_tiny_patch16_224", TINY | {"dynamic_img_size": True}, {"dynamic_img_size": None}),
        ("vit_tiny_patch16_384", TINY, {}),
        ("deit_tiny_distilled_patch16_224", TINY, {}),  # two classifiers
        ("vit_tiny_patch16_224.augreg_in21k", TINY, {}),
    ],
)
def test_timms_own_folders(tmp_path: Path, name: str, options: dict[str, Any], ours: dict[str, Any]) -> None:
    block = check(tmp_path, timms_folder(tmp_path, name, **options))
    assert block["architecture"]["name"] == f"timm:{name.partition('.')[0]}"
    found = block["architecture"]["options"]  # timm adds some that it has by default
    assert {key: found.get(key) for key in options | ours} == options | ours
    assert block["network"] == "pretrained"


@of_its_own_inputs
@pytest.mark.parametrize("size", [64, 96])
def test_timms_preprocessing(tmp_path: Path, size: int) -> None:
    data = {
        "input_size": (3, size, size),
        "crop_pct": 0.7,
        "mean": (0.1, 0.2, 0.3),
        "std": (0.4, 0.5, 0.6),
        "interpolation": "bicubic",
    }
    config = timms_folder(tmp_path, "resnet10t", data=data, channels=[8, 16, 24, 32], stem_width=8)
    expected = Preprocessing(math.floor(size / 0.7), size, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bicubic")
    assert check(tmp_path, config)["preprocessing"] == expected.to_dict()


@of_its_own_inputs
def test_position_embeddings_of_another_size_than_the_architectures_own(tmp_path: Path) -> None:
    """Fine-tuned weights of timm's are of another size, which only the preprocessing tells."""
    config = timms_folder(tmp_path, "vit_tiny_patch16_224", **TINY, img_size=64)
    del config["model_args"]["img_size"]
    assert config["pretrained_cfg"]["input_size"] == [3, 64, 64]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert check(tmp_path, config)["architecture"]["options"]["img_size"] == 64


def test_timms_older_flat_files(tmp_path: Path) -> None:
    config = timms_folder(tmp_path, "resnet10t")
    flat = config.pop("pretrained_cfg") | {"architecture": "resnet10t", "num_features": 512}
    (tmp_path / "config.json").write_text(json.dumps(flat), encoding="utf-8")
    check(tmp_path, flat)


def test_what_timm_says_of_the_licence_is_kept() -> None:
    """As `timm/vit_small_patch16_224.dino` has it."""
    block = timm_format.block_of(
        {
            "architecture": "vit_small_patch16_224",
            "num_classes": 0,
            "num_features": 384,
            "pretrained_cfg": {
                "tag": "dino",
                "custom_load": False,
                "input_size": [3, 224, 224],
                "fixed_input_size": True,
                "interpolation": "bicubic",
                "crop_pct": 0.9,
                "mean": [0.485, 0.456, 0.406],
                "std": [0.229, 0.224, 0.225],
                "num_classes": 0,
                "license": "apache-2.0",
                "first_conv": "patch_embed.proj",
                "classifier": "head",
            },
        }
    )
    assert block == {
        "architecture": {"name": "timm:vit_small_patch16_224", "options": {}},
        "preprocessing": {
            "resize": 248,
            "crop": 224,
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
            "interpolation": "bicubic",
        },
        "network": "pretrained",
        "timm": {"tag": "dino", "license": "apache-2.0"},
    }


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"architecture": "resnet51"}, "this timm has no model 'resnet51'"),
        ({"architecture": "hf-hub:someone/else"}, "no model"),
        ({"architecture": "../resnet50"}, "no model"),
        ({"architecture": None}, "no model None"),
        ({"architecture": ["resnet50"]}, "no model"),
        ({"model_args": {"in_chans": 1}}, "its images are 1 x 224 x 224, not square and RGB"),
        ({"pretrained_cfg": {"input_size": [3, 224, 256]}}, "3 x 224 x 256"),
        ({"pretrained_cfg": {"input_size": [4, 224, 224]}}, "4 x 224 x 224"),
        ({"pretrained_cfg": {"input_size": [224, 224]}}, "not enough values"),
        ({"pretrained_cfg": {"input_size": "large"}}, None),
        ({"pretrained_cfg": {"crop_pct": "0.9"}}, None),
        ({"pretrained_cfg": {"crop_pct": 5e-324}}, None),
        ({"pretrained_cfg": []}, None),
        ({"model_args": "none"}, None),
    ],
)
def test_what_is_not_timms_is_refused(change: dict[str, Any], error: str | None) -> None:
    config: dict[str, Any] = {"architecture": "resnet50", "pretrained_cfg": {}, "model_args": {}}
    timm_format.block_of(config)
    expected = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError)
    with pytest.raises(expected, match=error):
        timm_format.block_of(config | change)
    with pytest.raises(expected):
        timm_format.block_of({})


def test_classifiers() -> None:
    assert timm_format.classifiers("resnet50") == ("fc.",)
    assert timm_format.classifiers("vit_small_patch16_224.dino") == ("head.",)
    assert timm_format.classifiers("deit_tiny_distilled_patch16_224") == ("head.", "head_dist.")
