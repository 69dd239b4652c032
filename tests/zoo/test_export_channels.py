"""Exports of a network of images of four channels: the same features from each, or a refusal by name."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

import excb
from excb.errors import UserError
from excb.hub.selftest import check_self_test, expected
from excb.zoo.export import export, export_with_snippet
from tests.run_files import features, tiny_recipe, write_run

pytestmark = pytest.mark.usefixtures("one_thread")

CHANNELS = 4
NO_COLOURS: dict[str, Any] = {"saturation": 0.0, "hue": 0.0, "grey": 0.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = {"backbone": "resnet18", "options": {"in_chans": CHANNELS}}
    recipe = tiny_recipe(model, mean=(0.5,) * CHANNELS, std=(0.2,) * CHANNELS, **NO_COLOURS)
    return write_run(tmp_path_factory.mktemp("runs") / "run", 10, recipe=recipe)


def inputs(count: int = 2) -> torch.Tensor:
    return torch.randn(count, CHANNELS, 64, 64, generator=torch.Generator().manual_seed(0))


def test_a_folder_for_excb_and_for_timm(run: Path, tmp_path: Path) -> None:
    folder = export(str(run), tmp_path / "exported")
    ours, theirs = excb.load(folder), excb.load(run)
    assert torch.equal(features(ours, inputs()), features(theirs, inputs()))
    assert ours.transform == theirs.transform
    check_self_test(ours, expected(theirs))
    config = json.loads((folder / "config.json").read_text())
    assert config["pretrained_cfg"]["input_size"] == [CHANNELS, 64, 64]
    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    torch.testing.assert_close(features(network, inputs()), features(theirs, inputs()), rtol=1e-4, atol=1e-5)


def test_arrays_are_embedded(run: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (70, 80, CHANNELS), np.uint8)
    assert excb.load(run).embed([image, image[:66]]).shape == (2, 512)
    with pytest.raises(UserError, match=r"4 channels is uint8 pixels \[H, W, 4\], or the path of a file, not uint8"):
        excb.load(run).embed(image[..., :3])


def test_the_snippet_of_timm_builds_the_network(run: Path, tmp_path: Path) -> None:
    written, code, _ = export_with_snippet(str(run), tmp_path / "file.safetensors", format="timm")
    assert f"in_chans={CHANNELS}" in code
    names: dict[str, Any] = {}
    exec(code, names)
    assert written.is_file()
    torch.testing.assert_close(
        features(names["backbone"], inputs()), features(excb.load(run), inputs()), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("name", "suffix"), [("torchvision", ".pth"), ("detectron2", ".pkl")])
def test_programs_of_colours_are_refused(run: Path, tmp_path: Path, name: Any, suffix: str) -> None:
    with pytest.raises(UserError, match="images of 3 channels, and this one takes 4: choose --format excb"):
        export(str(run), tmp_path / f"file{suffix}", format=name)
    assert not list(tmp_path.iterdir())


def test_onnx_gives_the_same_features(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx: not installed")
    pytest.importorskip("onnxscript", reason="onnxscript: not installed")
    file = export(str(run), tmp_path / "file.onnx", format="onnx")
    written = importlib.import_module("onnx").load(file)
    (taken,) = written.graph.input
    assert [side.dim_value for side in taken.type.tensor_type.shape.dim] == [0, CHANNELS, 64, 64]
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime: not installed, so features are not compared")
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"images": inputs(3).numpy()})
    torch.testing.assert_close(torch.from_numpy(found), features(excb.load(run), inputs(3)), rtol=1e-4, atol=1e-4)
