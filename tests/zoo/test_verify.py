"""Tests of `excb-zoo verify`: what comes with the package passes; random, changed and bare checkpoints do not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from excb.checkpoint import exported
from excb.console import Reporter
from excb.files.foreign import sha256_of
from excb.hub import selftest
from excb.hub.backbone import Backbone, Entry
from excb.hub.catalogue import bundled_folder
from excb.networks.architecture import Architecture
from excb.networks.backbone import feature_width
from excb.networks.preprocessing import Preprocessing
from excb.zoo.__main__ import main
from excb.zoo.export import export
from excb.zoo.verify import verify
from tests.run_files import TINY_RESNET, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the bundled checkpoint."""
    bundled = bundled_folder("tiny_grocery")
    assert bundled is not None
    return Path(shutil.copytree(bundled, tmp_path / "copy"))


@pytest.fixture
def taken_as_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing with random networks takes seconds: a test of another check leaves it out."""
    monkeypatch.setattr(selftest, "check_trained", lambda _backbone: None)


def states(name: str | Path) -> dict[str, str]:
    return {row.check: row.state for row in verify(str(name), Reporter(quiet=True))}


def rehash(folder: Path, change: Callable[[dict[str, Any]], object] = lambda _config: None) -> None:
    """Change config.json, and give it the hashes of the files that are there."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    change(config)
    config["excb"]["sha256"] = {file.name: sha256_of(file) for file in folder.glob("*.safetensors")}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_the_bundled_checkpoint_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "tiny_grocery", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["check"], row["state"]) for row in rows] == [
        ("sha256", "ok"),
        ("coverage", "ok"),
        ("self-test", "ok"),
        ("trained", "ok"),
    ]


@pytest.mark.usefixtures("taken_as_trained")
def test_an_export_of_the_student_is_verified_as_one(tmp_path: Path) -> None:
    folder = export(str(write_run(tmp_path / "run", 1)), tmp_path / "student", network="student")
    assert set(states(folder).values()) == {"ok"}


@pytest.mark.parametrize("moved", [False, True])
def test_a_random_network_does_not_pass_with_a_self_test_of_its_own(
    tmp_path: Path, moved: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """As first made, or with all its norms moved as if it had been trained."""
    architecture = Architecture(TINY_RESNET["backbone"], {"channels": [24, 48, 96, 256], "stem_width": 8})
    network = architecture.build()
    if moved:
        for name, tensor in network.state_dict().items():
            if tensor.ndim == 1 and name.endswith(("weight", "bias", "running_mean")):
                tensor.add_(0.1 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name))))
    preprocessing = Preprocessing(80, 80)
    backbone = Backbone(network, preprocessing, Entry("here", architecture)).eval()
    exported.write_exported(
        tmp_path / "random",
        tensors=network.state_dict(),
        architecture=architecture,
        preprocessing=preprocessing,
        width=feature_width(network),
        facts={},
        complete=lambda unfinished: selftest.write_self_test(unfinished, backbone),
    )
    assert main(["verify", str(tmp_path / "random"), "--json"]) == 2
    said = capsys.readouterr()
    rows = {row["check"]: row["state"] for row in json.loads(said.out)}
    assert rows == {"sha256": "ok", "coverage": "ok", "self-test": "ok", "trained": "failed"}
    assert "did not pass" in said.err


@pytest.mark.usefixtures("taken_as_trained")
def test_a_changed_weight_with_a_hash_of_its_own_fails_the_self_test(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["layer3.0.conv1.weight"][0, 0, 0, 0] += 1.0
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert states(folder) == {"sha256": "failed"}
    rehash(folder)
    assert states(folder)["self-test"] == "failed"


@pytest.mark.usefixtures("taken_as_trained")
def test_another_deviation_fails_the_self_test(folder: Path) -> None:
    rehash(folder, lambda config: config["excb"]["preprocessing"].update(std=[0.228, 0.224, 0.225]))
    assert states(folder)["self-test"] == "failed"


def test_a_missing_tensor_fails_coverage(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["layer3.0.conv1.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    rehash(folder)
    assert states(folder) == {"sha256": "ok", "coverage": "failed"}


@pytest.mark.usefixtures("taken_as_trained")
def test_without_a_self_test_it_cannot_pass(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "selftest.safetensors").unlink()
    assert states(folder) == {"sha256": "failed"}
    rehash(folder)
    assert states(folder) == {"sha256": "ok", "coverage": "ok", "self-test": "cannot", "trained": "ok"}
    assert main(["verify", str(folder)]) == 2
    assert "did not pass" in capsys.readouterr().err


@pytest.mark.usefixtures("taken_as_trained")
def test_a_run_has_neither_hashes_nor_self_test(tmp_path: Path) -> None:
    found = states(write_run(tmp_path / "run", 3))
    assert (found["sha256"], found["coverage"], found["self-test"]) == ("cannot", "ok", "cannot")
