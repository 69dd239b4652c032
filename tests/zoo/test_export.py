"""Tests of exported folders: `excb.load`, plain timm and plain torchvision all get the same network out of them."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
import torchvision
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from timm.data import create_transform, resolve_data_config, resolve_model_data_config
from torch import nn

import excb
from excb.errors import UserError
from excb.zoo.export import export
from tests.run_files import TINY_RESNET, TINY_VIT, features, photograph, pictures, tiny_recipe, write_run

TINY_CONVNEXT: dict[str, Any] = {
    "backbone": "timm:convnext_atto",
    "options": {"dims": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
}
RESNET18: dict[str, Any] = {"backbone": "resnet18", "options": {}}
every_network = pytest.mark.parametrize(
    "network", [TINY_RESNET, TINY_VIT, TINY_CONVNEXT, RESNET18], ids=lambda network: network["backbone"]
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every network exported, by its name."""
    made, base = {}, tmp_path_factory.mktemp("zoo")
    for number, network in enumerate((TINY_RESNET, TINY_VIT, TINY_CONVNEXT, RESNET18)):
        run = write_run(base / f"run{number}", 10, recipe=tiny_recipe(network, eval_resize=72, eval_crop=64))
        made[network["backbone"]] = export(str(run), base / f"exported{number}")
    return made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", 10)


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# The same network for everyone
# ---------------------------------------------------------------------------------------------------------------------


@every_network
def test_exported_folder_gives_the_features_of_its_run(folders: dict[str, Path], network: dict[str, Any]) -> None:
    folder = folders[network["backbone"]]
    run = folder.parent / folder.name.replace("exported", "run")
    loaded = excb.load(folder)
    assert torch.equal(features(loaded, pictures()), features(excb.load(run), pictures()))
    assert loaded.transform == excb.load(run).transform
    assert loaded.entry.architecture.name == network["backbone"]
    assert loaded.entry.architecture.options == network["options"]


@every_network
def test_plain_timm_builds_it_from_config_json(folders: dict[str, Path], network: dict[str, Any]) -> None:
    folder = folders[network["backbone"]]
    config = config_of(folder)
    plain = timm.create_model(config["architecture"], num_classes=0, **config["model_args"])
    plain.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    found = features(plain.eval(), pictures())
    assert torch.equal(found, features(excb.load(folder), pictures()))
    assert found.shape == (3, config["num_features"])


@every_network
def test_timm_opens_the_folder_by_its_path(folders: dict[str, Path], network: dict[str, Any]) -> None:
    folder = folders[network["backbone"]]
    plain = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert torch.equal(features(plain.eval(), pictures()), features(excb.load(folder), pictures()))
    image = photograph()
    transform = create_transform(**resolve_model_data_config(plain), is_training=False)
    torch.testing.assert_close(transform(image), excb.load(folder).transform(image), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["resnet18", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_plain_torchvision_takes_the_weights(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run", 1, recipe=tiny_recipe({"backbone": name, "options": {}}))
    folder = export(str(run), tmp_path / "exported")
    plain = getattr(torchvision.models, name)()
    plain.fc = nn.Identity()
    plain.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    assert torch.equal(features(plain.eval(), pictures(2)), features(excb.load(folder), pictures(2)))


def test_exported_folder_can_be_exported_again(folders: dict[str, Path], tmp_path: Path) -> None:
    first = folders["timm:resnet10t"]
    second = export(str(first), tmp_path / "again")
    assert config_of(second) == config_of(first)
    assert (second / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    assert export(str(second), second) == second  # in place
    assert config_of(second) == config_of(first)


def test_student_is_exported_as_the_student(run: Path, tmp_path: Path) -> None:
    folder = export(str(run), tmp_path / "exported", network="student")
    assert config_of(folder)["excb"]["network"] == "student"
    student = features(excb.load(run, network="student"), pictures())
    assert torch.equal(features(excb.load(folder, network="student"), pictures()), student)


# ---------------------------------------------------------------------------------------------------------------------
# config.json
# ---------------------------------------------------------------------------------------------------------------------


def test_config_tells_everything(run: Path, tmp_path: Path) -> None:
    config = config_of(export(str(run), tmp_path / "deep" / "exported"))
    assert config == {
        "architecture": "resnet10t",
        "num_classes": 0,
        "num_features": 32,
        "pretrained_cfg": {
            "num_classes": 0,
            "input_size": [3, 64, 64],
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
            "crop_pct": 1.0,
            "interpolation": "bilinear",
            "crop_mode": "center",
        },
        "model_args": {"channels": [8, 16, 24, 32], "stem_width": 8},
        "excb": {
            "version": excb.__version__,
            "method": "ExCB",
            "architecture": {"name": "timm:resnet10t", "options": {"channels": [8, 16, 24, 32], "stem_width": 8}},
            "preprocessing": {
                "resize": 64,
                "crop": 64,
                "mean": [0.485, 0.456, 0.406],
                "std": [0.229, 0.224, 0.225],
                "interpolation": "bilinear",
            },
            "network": "teacher",
            "step": 10,
            "epoch": 1.0,
            "recipe": tiny_recipe().to_dict(),
        },
    }


def test_weights_are_the_backbone_alone(run: Path, tmp_path: Path) -> None:
    folder = export(str(run), tmp_path / "exported")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    expected = excb.load(run).network.state_dict()
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(expected)
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize(
    ("resize", "crop"),
    [(256, 224), (110, 96), (64, 64), (93, 64), (99, 57), (118, 96), (187, 96)],  # of the last four, timm is one off
)
def test_timm_prepares_images_as_the_checkpoint_does(tmp_path: Path, resize: int, crop: int) -> None:
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    recipe = tiny_recipe(eval_resize=resize, eval_crop=crop, mean=mean, std=std)
    folder = export(str(write_run(tmp_path / "run", 1, recipe=recipe)), tmp_path / "exported")
    found = resolve_data_config(pretrained_cfg=config_of(folder)["pretrained_cfg"])
    assert (tuple(found["mean"]), tuple(found["std"])) == (mean, std)
    assert tuple(found["input_size"]) == (3, crop, crop)
    assert found["interpolation"] == "bilinear"
    assert found["crop_pct"] == pytest.approx(crop / resize, rel=1e-12)
    assert math.floor(crop / found["crop_pct"]) == resize  # timm.data.transforms_factory
    image = photograph(120)
    transform = create_transform(**found, is_training=False)
    torch.testing.assert_close(transform(image), excb.load(folder).transform(image), rtol=0, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Failures
# ---------------------------------------------------------------------------------------------------------------------


def test_nothing_loadable_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint"):
        export(str(tmp_path / "nothing"), tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_folder_that_cannot_be_made(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "exported"):
        with pytest.raises(UserError, match="cannot write"):
            export(str(run), place)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("I/O error: No space left")])
def test_failing_write_leaves_what_was_there(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    folder = export(str(run), tmp_path / "exported")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(_weights: dict[str, Any], file: Path, metadata: dict[str, str]) -> None:
        file.write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    with pytest.raises(UserError, match=r"cannot write .*No space left"):
        export(str(write_run(tmp_path / "other", 3)), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
