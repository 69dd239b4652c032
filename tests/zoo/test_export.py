"""Tests of exports: every program that reads one gets the features of the checkpoint, or a refusal, never others."""

import ast
import importlib
import importlib.util
import json
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import excb
from excb.checkpoint import exported, run_checkpoint
from excb.checkpoint.detectron2_names import detectron2_names
from excb.errors import UserError
from excb.files.foreign import sha256_of
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.zoo.export import export, export_with_snippet
from tests.failing_disk import failing_at, names
from tests.run_files import TINY_RESNET, TINY_VIT, features, pictures, tiny_recipe, write_run

pytestmark = pytest.mark.usefixtures("one_thread")

RESNET18: dict[str, Any] = {"backbone": "resnet18", "options": {}}
STD = (0.228, 0.224, 0.225)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each network, by its name."""
    base = tmp_path_factory.mktemp("runs")
    recipe = {
        network["backbone"]: tiny_recipe(network, eval_resize=72, eval_crop=64, std=STD)
        for network in (TINY_RESNET, TINY_VIT, RESNET18)
    }
    return {name: write_run(base / str(number), 10, recipe=recipe[name]) for number, name in enumerate(recipe)}


@pytest.fixture(scope="module")
def resnet18(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(str(runs["resnet18"]), tmp_path_factory.mktemp("exported") / "resnet18")


@pytest.fixture
def tiny(runs: dict[str, Path]) -> Path:
    return runs["timm:resnet10t"]


def images() -> Tensor:
    return pictures(2)


def features_of(place: Path, **chosen: Any) -> Tensor:
    return features(excb.load(place, **chosen), images())


# ---------------------------------------------------------------------------------------------------------------------
# Folders
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["timm:resnet10t", "vit_tiny", "resnet18"])
@pytest.mark.parametrize("network", ["teacher", "student"])
def test_exported_folder_gives_the_features_of_its_run(
    runs: dict[str, Path], tmp_path: Path, name: str, network: Any
) -> None:
    folder = export(str(runs[name]), tmp_path / "exported", network=network)
    assert folder == tmp_path / "exported"
    ours, theirs = excb.load(folder, network=network), excb.load(runs[name], network=network)
    assert torch.equal(features(ours, images()), features(theirs, images()))
    assert ours.transform == theirs.transform == Preprocessing(72, 64, std=STD)
    assert ours.entry.architecture == theirs.entry.architecture
    assert (ours.entry.network, ours.entry.step, ours.entry.epoch) == (network, 10, 1.0)
    assert ours.entry.recipe == theirs.entry.recipe


@pytest.mark.parametrize("network", ["teacher", "student"])
def test_heads_of_both_networks_and_sizes_go_with_it(tiny: Path, tmp_path: Path, network: Any) -> None:
    found = exported.read_part(export(str(tiny), tmp_path / "exported", network=network), exported.HEADS)
    model = run_checkpoint.read_run_checkpoint(tiny / "checkpoints" / "step-10.pt")["model"]
    expected = {name: value for name, value in model.items() if ".backbone." not in name}
    assert {"sizes", "student.centroids.weight", "teacher.centroids.weight", "student.predictor.1.weight"} <= set(
        expected
    )
    assert found is not None
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_folder_holds_its_selftest_and_hashes_of_everything(tiny: Path, tmp_path: Path) -> None:
    folder = export(str(tiny), tmp_path / "exported")
    parts = ["excb_head.safetensors", "model.safetensors", "selftest.safetensors"]
    assert names(folder) == ["config.json", *parts]
    block = json.loads((folder / "config.json").read_text(encoding="utf-8"))["excb"]
    assert block == {
        "version": excb.__version__,
        "architecture": {"name": "timm:resnet10t", "options": TINY_RESNET["options"]},
        "preprocessing": Preprocessing(72, 64, std=STD).to_dict(),
        "network": "teacher",
        "step": 10,
        "epoch": 1.0,
        "recipe": excb.load(tiny).entry.recipe,
        "training": {"data": "images", "images": 2, "fingerprint": "0" * 64, "seconds": 1.0},
        "checkpoint": None,
        "origin": None,
        "sha256": {part: sha256_of(folder / part) for part in parts},
    }
    assert exported.read_part(folder, exported.SELFTEST)


def test_exported_folder_can_be_exported_again(tiny: Path, tmp_path: Path) -> None:
    first = export(str(tiny), tmp_path / "first")
    before = {path.name: path.read_bytes() for path in first.iterdir()}
    for again in (export(str(first), tmp_path / "second"), export(str(first), first)):
        assert {path.name: path.read_bytes() for path in again.iterdir()} == before


def test_foreign_file_is_exported_with_its_origin(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs: Any = torchvision.models.resnet18()
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    folder = export(str(tmp_path / "theirs.pth"), tmp_path / "exported")
    theirs.fc = nn.Identity()
    assert torch.equal(features(excb.load(folder), images()), features(theirs.eval(), images()))
    block = json.loads((folder / "config.json").read_text(encoding="utf-8"))["excb"]
    digest = sha256_of(tmp_path / "theirs.pth")
    assert block["origin"] == {"file": "theirs.pth", "sha256": digest, "layout": excb.load(folder).entry.layout}
    assert block["origin"]["layout"]
    assert "layout" not in block
    assert (block["step"], block["recipe"], block["checkpoint"]) == (None, None, None)
    assert "excb_head.safetensors" not in names(folder)


# ---------------------------------------------------------------------------------------------------------------------
# Files for other programs
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_torchvision_takes_the_file(resnet18: Path, tmp_path: Path, suffix: str) -> None:
    file = export(str(resnet18), tmp_path / f"file{suffix}", format="torchvision")
    assert names(tmp_path) == [file.name]
    plain: Any = torchvision.models.resnet18()
    plain.fc = nn.Identity()
    state = load_file(file) if suffix == ".safetensors" else torch.load(file, weights_only=True)
    plain.load_state_dict(state, strict=True)
    assert torch.equal(features(plain.eval(), images()), features_of(resnet18))


@pytest.mark.parametrize("name", ["timm:resnet10t", "vit_tiny", "resnet18"])
def test_timm_takes_the_file(runs: dict[str, Path], tmp_path: Path, name: str) -> None:
    file = export(str(runs[name]), tmp_path / "file.safetensors", format="timm", network="student")
    architecture = Architecture(
        **run_checkpoint.read_run_checkpoint(runs[name] / "checkpoints" / "step-10.pt")["architecture"]
    )
    plain = timm.create_model(architecture.timm_name or name, num_classes=0, **architecture.options)
    plain.load_state_dict(load_file(file), strict=True)
    expected = features(excb.load(runs[name], network="student"), pictures(2, 224))
    torch.testing.assert_close(features(plain.eval(), pictures(2, 224)), expected)
    with safe_open(file, "pt") as opened:
        assert opened.metadata()["format"] == "pt"
        assert json.loads(opened.metadata()["preprocessing"]) == Preprocessing(72, 64, std=STD).to_dict()


def test_detectron2_takes_the_file(resnet18: Path, tmp_path: Path) -> None:
    file = export(str(resnet18), tmp_path / "file.pkl", format="detectron2")
    found = pickle.loads(file.read_bytes(), encoding="latin1")  # as Detectron2 reads it
    assert found.keys() == {"model", "__author__", "matching_heuristics"}
    assert found["matching_heuristics"] is True
    expected = detectron2_names(excb.load(resnet18).network.state_dict())
    assert found["model"].keys() == expected.keys()
    for name, value in found["model"].items():
        assert type(value) is np.ndarray
        assert value.dtype == np.float32
        assert value.flags.writeable, "torch warns of arrays that are not"
        assert torch.equal(torch.from_numpy(value), expected[name])


def test_any_numpy_reads_detectron2s_file(resnet18: Path, tmp_path: Path) -> None:
    """NumPy 1 has no `numpy._core`, which NumPy 2's own pickles name, and Detectron2 is often built with it."""
    file = export(str(resnet18), tmp_path / "file.pkl", format="detectron2")
    texts = [
        str(argument) for _code, argument, _place in pickletools.genops(file.read_bytes()) if isinstance(argument, str)
    ]
    assert {"numpy", "ndarray"} <= set(texts)
    assert not [text for text in texts if text.startswith("numpy.")]


def test_detectron2_is_told_what_goes_with_the_weights(resnet18: Path, tmp_path: Path) -> None:
    export(str(resnet18), tmp_path / "file.pkl", format="detectron2")
    assert names(tmp_path) == ["file.pkl", "file.pkl.yaml"]
    text = (tmp_path / "file.pkl.yaml").read_text(encoding="utf-8")
    found: dict[str, str] = dict(re.findall(r"^ +(\w+): (.+)$", text, re.MULTILINE))
    assert ast.literal_eval(found["PIXEL_MEAN"]) == [123.675, 116.28, 103.53]
    assert ast.literal_eval(found["PIXEL_STD"]) == [58.14, 57.12, 57.375]
    assert (
        found.items()
        >= {
            "FORMAT": "RGB",
            "STRIDE_IN_1X1": "false",
            "DEPTH": "18",
            "RES2_OUT_CHANNELS": "64",
        }.items()
    )


@pytest.mark.slow
@pytest.mark.detectron2
def test_detectron2s_own_model_takes_the_file(tmp_path: Path) -> None:
    """Mask R-CNN C4, whose last stage lies in its heads: `matching_heuristics` must bring it there."""
    from detectron2.checkpoint import DetectionCheckpointer
    from detectron2.config import get_cfg
    from detectron2.modeling import build_model

    recipe = tiny_recipe({"backbone": "resnet50", "options": {}}, std=STD)
    run = write_run(tmp_path / "run", 1, recipe=recipe)
    file = export(str(run), tmp_path / "file.pkl", format="detectron2")
    settings = get_cfg()
    settings.MODEL.DEVICE = "cpu"
    settings.MODEL.MASK_ON = True
    settings.MODEL.RPN.PRE_NMS_TOPK_TEST = 10
    settings.merge_from_file(str(tmp_path / "file.pkl.yaml"))
    theirs = build_model(settings).eval()
    DetectionCheckpointer(theirs).load(str(file))
    network = excb.load(run).network
    taken: list[Tensor] = []
    for name in ("layer3", "layer4"):
        network.get_submodule(name).register_forward_hook(lambda _module, _inputs, output: taken.append(output))
    features(network, images())
    with torch.no_grad():
        found = theirs.backbone(images())["res4"]
        last = theirs.roi_heads.res5(found)
    for ours, its in zip(taken, (found, last), strict=True):
        torch.testing.assert_close(its, ours, rtol=1e-4, atol=1e-4 * float(ours.abs().max()))
    assert theirs.pixel_std.flatten().tolist() == pytest.approx([58.14, 57.12, 57.375])


@pytest.mark.parametrize("name", ["timm:resnet10t", pytest.param("vit_tiny", marks=pytest.mark.slow)])
def test_onnx_gives_the_same_features_for_any_batch(runs: dict[str, Path], tmp_path: Path, name: str) -> None:
    pytest.importorskip("onnx", reason="onnx: not installed")
    pytest.importorskip("onnxscript", reason="onnxscript: not installed")
    file = export(str(runs[name]), tmp_path / "file.onnx", format="onnx")
    assert names(tmp_path) == ["file.onnx"]
    written = importlib.import_module("onnx").load(file)
    metadata = {entry.key: entry.value for entry in written.metadata_props}
    assert json.loads(metadata["preprocessing"]) == Preprocessing(72, 64, std=STD).to_dict()
    (taken,), (given,) = written.graph.input, written.graph.output
    assert (taken.name, given.name) == ("images", "features")
    assert [side.dim_value for side in taken.type.tensor_type.shape.dim] == [0, 3, 64, 64]
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime: not installed, so features are not compared")
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for count in (1, 3):
        (found,) = session.run(None, {"images": pictures(count).numpy()})
        torch.testing.assert_close(torch.from_numpy(found), features(excb.load(runs[name]), pictures(count)))


# ---------------------------------------------------------------------------------------------------------------------
# Refusals and failures
# ---------------------------------------------------------------------------------------------------------------------


def test_torchvisions_other_networks(tmp_path: Path) -> None:
    name = "torchvision:mobilenet_v3_small"
    network = Architecture(name).build().eval()
    folder = exported.write_exported(
        tmp_path / "folder",
        tensors=network.state_dict(),
        architecture=Architecture(name),
        preprocessing=Preprocessing(),
        width=1,
        facts={},
    )
    file = export(str(folder), tmp_path / "file.safetensors", format="torchvision")
    plain = torchvision.models.get_model("mobilenet_v3_small")
    missing, unexpected = plain.load_state_dict(load_file(file), strict=False)
    assert not unexpected
    assert {layer.rpartition(".")[0] for layer in missing} == {"classifier.0", "classifier.3"}
    refusals: tuple[tuple[Any, str], ...] = (("timm", "file.pth"), ("detectron2", "file.pkl"))
    for format_, out in refusals:
        with pytest.raises(UserError, match=rf"has no {name}: choose another --format; excb and onnx take"):
            export(str(folder), tmp_path / out, format=format_)


@pytest.mark.parametrize(("format_", "program"), [("torchvision", "torchvision"), ("detectron2", "Detectron2")])
def test_networks_that_a_program_does_not_have(
    runs: dict[str, Path], tmp_path: Path, format_: Any, program: str
) -> None:
    for name in ("timm:resnet10t", "vit_tiny"):
        with pytest.raises(UserError, match=f"{program} has no {name}: choose another --format; excb and onnx"):
            export(str(runs[name]), tmp_path / "deep" / "file.pkl", format=format_)
    assert names(tmp_path) == []


def test_unknown_format(tiny: Path, tmp_path: Path) -> None:
    unknown: Any = "onyx"
    with pytest.raises(
        UserError, match=r"no format is called 'onyx'; did you mean 'onnx'\? \(formats are excb, torchvision"
    ):
        export(str(tiny), tmp_path / "file", format=unknown)


@pytest.mark.parametrize("format_", ["torchvision", "timm", "detectron2", "onnx"])
def test_file_of_another_kind(resnet18: Path, tmp_path: Path, format_: Any) -> None:
    with pytest.raises(UserError, match=r"cannot write .*file\.bin: its name must end in \..* for this format"):
        export(str(resnet18), tmp_path / "file.bin", format=format_)
    assert names(tmp_path) == []


@pytest.mark.parametrize("format_", ["excb", "torchvision", "timm", "onnx"])
@pytest.mark.parametrize("out", ["new/folder", "here", "file.safetensors"])
def test_a_folder_or_a_file_and_the_python_that_loads_it(
    resnet18: Path, tiny: Path, tmp_path: Path, format_: Any, out: str
) -> None:
    source = resnet18 if format_ == "torchvision" else tiny
    if format_ == "onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(module, reason=f"{module}: not installed")
        out = out.replace(".safetensors", ".onnx")
    (tmp_path / "here").mkdir()
    written, code, file = export_with_snippet(str(source), tmp_path / out, format=format_)
    assert written.exists()
    assert written.is_dir() == (format_ == "excb")
    assert file.read_text(encoding="utf-8") == code
    loaded: dict[str, Any] = {}
    exec(code, loaded)
    batch = pictures(2, 64)
    if format_ == "onnx":
        found = torch.from_numpy(loaded["features"](batch.numpy()))
    else:
        found = features(loaded["backbone"], batch)
    torch.testing.assert_close(found, features(excb.load(source), batch), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["timm:resnet10t", "vit_tiny"])
def test_the_python_builds_the_network_for_images_of_the_run(runs: dict[str, Path], tmp_path: Path, name: str) -> None:
    _, code, _ = export_with_snippet(str(runs[name]), tmp_path / "file.safetensors", format="timm")
    loaded: dict[str, Any] = {}
    exec(code, loaded)
    batch = pictures(2, 64)  # other than the 224 that timm builds a ViT for
    torch.testing.assert_close(features(loaded["backbone"], batch), features(excb.load(runs[name]), batch))


@pytest.mark.parametrize("side", [64, 224])
def test_positions_that_timm_interpolates_otherwise(tmp_path: Path, side: int) -> None:
    recipe = tiny_recipe(TINY_VIT | {"position_interpolation": "dino"}, eval_resize=side, eval_crop=side)
    run = write_run(tmp_path / "run", 1, recipe=recipe)
    out = tmp_path / "file.safetensors"
    if side == 64:
        with pytest.raises(UserError, match=r"timm does not interpolate .* as DINO does, which images of 64 pixels"):
            export(str(run), out, format="timm")
        assert not out.exists()
        return
    loaded: dict[str, Any] = {}
    exec(export_with_snippet(str(run), out, format="timm")[1], loaded)
    batch = pictures(2, side)
    torch.testing.assert_close(features(loaded["backbone"], batch), features(excb.load(run), batch))


@pytest.mark.detectron2
def test_the_python_configures_detectron2(resnet18: Path, tmp_path: Path) -> None:
    written, code, _ = export_with_snippet(str(resnet18), tmp_path, format="detectron2")
    loaded: dict[str, Any] = {}
    exec(code, loaded)
    model = loaded["cfg"].MODEL
    assert Path(model.WEIGHTS) == written
    assert model.RESNETS.DEPTH == 18


def test_our_own_network_is_no_timm_network(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1, recipe=tiny_recipe({"backbone": "conv4", "options": {}}))
    with pytest.raises(UserError, match="timm has no conv4: choose another --format"):
        export(str(run), tmp_path / "out", format="timm")


def test_missing_onnx_is_told_in_one_line(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("onnx") else find(name))
    with pytest.raises(UserError, match=r"^--format onnx needs onnx and onnxscript: pip install onnx onnxscript$"):
        export(str(tiny), tmp_path / "file.onnx", format="onnx")
    assert names(tmp_path) == []


def test_network_that_onnx_cannot_hold(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx", reason="onnx: not installed")
    pytest.importorskip("onnxscript", reason="onnxscript: not installed")

    def refuse(*_arguments: Any, **_keywords: Any) -> None:
        raise torch.onnx.OnnxExporterError("no operator of this kind\nand a long report")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(
        UserError, match=r"^ONNX cannot hold timm:resnet10t \(no operator of this kind\): choose another"
    ):
        export(str(tiny), tmp_path / "file.onnx", format="onnx")
    assert names(tmp_path) == []


def test_nothing_loadable_makes_nothing(tmp_path: Path) -> None:
    for format_ in ("excb", "timm"):
        with pytest.raises(UserError, match="no checkpoint"):
            export(str(tmp_path / "nothing"), tmp_path / "exported", format=format_)
    assert names(tmp_path) == []


def test_checkpoint_that_does_not_fit_makes_nothing(tiny: Path, tmp_path: Path) -> None:
    model = dict(run_checkpoint.read_run_checkpoint(tiny / "checkpoints" / "step-10.pt")["model"])
    del model["teacher.backbone.layer1.0.conv1.weight"]
    run = write_run(tmp_path / "run", 1, model=model)
    with pytest.raises(UserError, match=r"1 missing \(layer1\.0\.conv1\.weight\)"):
        export(str(run), tmp_path / "exported")
    assert names(tmp_path) == ["run"]


def test_place_that_cannot_be_written(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        export(str(tiny), tmp_path / "file")
    places: tuple[tuple[Any, str], ...] = (("excb", "exported"), ("timm", "file.pth"))
    for format_, name in places:
        with pytest.raises(UserError, match="cannot write"):
            export(str(tiny), tmp_path / "file" / name, format=format_)


@pytest.mark.parametrize(
    "case",
    [
        ("excb", "folder", 3, "write_bytes"),
        ("torchvision", "file.pth", 2, "write_bytes"),
        ("timm", "file.safetensors", 2, "write_bytes"),
        ("detectron2", "file.pkl", 3, "write_text"),
        ("detectron2", "file.pkl", 4, "write_bytes"),
    ],
)
def test_full_disk_leaves_what_was_there(
    runs: dict[str, Path], tiny: Path, tmp_path: Path, case: tuple[Any, str, int, str]
) -> None:
    format_, name, step, kind = case
    source = tiny if format_ in ("excb", "timm") else runs["resnet18"]
    export(str(source), tmp_path / name, format=format_)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with failing_at(step, cuts_power=False) as asked:
        export(str(source), tmp_path / name, format=format_, network="student", overwrite=True)
    assert asked[step - 1] == kind
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("format_", "name"),
    [("excb", "folder"), ("torchvision", "file.pth"), ("timm", "file.safetensors"), ("detectron2", "file.pkl")],
)
def test_other_weights_stay_unless_they_may_be_replaced(
    runs: dict[str, Path], tmp_path: Path, format_: Any, name: str
) -> None:
    source, out = str(runs["resnet18"]), tmp_path / name
    export(source, out, format=format_)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    export(source, out, format=format_)  # the same weights again
    with pytest.raises(UserError, match=r"--overwrite$"):
        export(source, out, format=format_, network="student")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    export(source, out, format=format_, network="student", overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} != before


def test_a_file_of_something_else_stays(resnet18: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.pth").write_text("years of work")
    with pytest.raises(UserError, match=r"mine\.pth is there, and holds something else: name another file with --out"):
        export(str(resnet18), tmp_path / "mine.pth", format="timm")
    assert (tmp_path / "mine.pth").read_text() == "years of work"
