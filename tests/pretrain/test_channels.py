"""Runs on images of other than three channels: recipes, and a set of twelve bands from end to end."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.images.image_set import ImageSet
from excb.images.subset import Subset
from excb.networks.backbone import image_channels
from excb.pretrain import overrides
from excb.pretrain.__main__ import main
from excb.pretrain.channels import fit_channels
from excb.pretrain.loop import run_training
from excb.pretrain.recipe import Recipe
from excb.pretrain.recipes import RECIPES
from excb.pretrain.train import changed_recipe
from excb.transfer.protocols import PROTOCOLS
from excb.transfer.task import Task
from excb.zoo.export import export
from tests.kept_notes import KeptNotes
from tests.pretrain.banded import BANDS, PIXELS, band_images
from tests.pretrain.small_runs import OVERRIDES, write_images

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")

COLOURS = ("saturation", "hue", "grey")


@pytest.mark.parametrize("name", ["rn50_100ep", "vits16_100ep", "conv4_tiny"])
@pytest.mark.parametrize("channels", [1, 4, 12])
def test_declared_channels_change_network_and_views(name: str, channels: int) -> None:
    usual = RECIPES[name]()
    recipe = overrides.apply(usual, [f"data.channels={channels}"])
    assert recipe.channels == recipe.model.architecture.channels == channels
    assert recipe.views.mean == recipe.views.std == ()
    assert not any(getattr(recipe.views, each) for each in COLOURS)
    assert recipe.views.brightness == usual.views.brightness


def test_three_channels_are_nothing_new() -> None:
    usual = RECIPES["conv4_tiny"]()
    assert "data" not in usual.to_dict()
    assert fit_channels(usual, 3) is usual
    assert overrides.apply(usual, ["data.channels=3"]).change(data={"channels": None}) == usual


@pytest.mark.parametrize("name", COLOURS)
def test_operations_on_colours_are_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match=rf"views\.{name}: operations on colours, which images of 4 channels have not"):
        overrides.apply(RECIPES["conv4_tiny"](), ["data.channels=4", f"views.{name}=0.1"])
    recipe = overrides.apply(RECIPES["conv4_tiny"](), ["data.channels=4", f"views.{name}=0"])
    with pytest.raises(UserError, match=rf"views\.{name} are operations on colours"):
        recipe.change(views={name: 0.1})


def test_other_numbers_of_means_are_refused() -> None:
    with pytest.raises(UserError, match=r"views\.mean has 2 numbers for images of 3 channels: give 3, or none"):
        overrides.apply(RECIPES["conv4_tiny"](), ["views.mean=0.5,0.5"])
    recipe = overrides.apply(RECIPES["conv4_tiny"](), ["data.channels=2", "views.mean=0.5,0.4", "views.std=0.2,0.3"])
    assert recipe.views.mean == (0.5, 0.4)


def test_networks_of_others_are_refused() -> None:
    with pytest.raises(UserError, match="torchvision:vgg11 takes images of 3 channels, not 4"):
        overrides.apply(RECIPES["conv4_tiny"](), ["data.channels=4", "model.backbone=torchvision:vgg11"])
    recipe = overrides.apply(RECIPES["conv4_tiny"](), ["data.channels=4"])
    with pytest.raises(UserError, match=r"takes images of 4 channels, and these have 12.*data\.channels"):
        fit_channels(recipe, 12)


@pytest.mark.parametrize("text", ["0", "5000", "x"])
def test_nonsense_is_no_number_of_channels(text: str) -> None:
    with pytest.raises(UserError, match=r"data\.channels"):
        overrides.apply(RECIPES["conv4_tiny"](), [f"data.channels={text}"])


# ---------------------------------------------------------------------------------------------------------------------
# Twelve bands from end to end
# ---------------------------------------------------------------------------------------------------------------------

SMALL: dict[str, dict[str, Any]] = {
    "method": {"clusters": 6, "kmeans_samples": 16},
    "views": {"global_size": 32, "local_size": 16, "eval_resize": 32, "eval_crop": 32},
    "optim": {"epochs": 1, "batch": 8, "warmup_epochs": 0.0},
    "monitor": {"k": 3},
    "efficiency": {"workers": 0, "device": "cpu"},
}


def small(name: str, *, init: str | None = None, **changes: dict[str, Any]) -> Recipe:
    sections = {section: SMALL.get(section, {}) | changes.get(section, {}) for section in {*SMALL, *changes}}
    return changed_recipe(name, init=init, **sections)  # type: ignore[arg-type, unused-ignore]


@pytest.fixture(scope="module")
def bands(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return band_images(tmp_path_factory.mktemp("bands"))


@pytest.fixture(scope="module")
def trained(bands: ImageSet, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    out, notes = tmp_path_factory.mktemp("trained") / "run", KeptNotes()
    assert run_training(small("conv4_tiny"), bands, out, notes, verdict=False) == 0
    return out, notes.lines


def test_a_run_takes_the_channels_of_its_images(bands: ImageSet, trained: tuple[Path, list[str]]) -> None:
    out, notes = trained
    assert any("images of 12 channels" in line and "hue" in line for line in notes)
    assert any("mean" in line and "standard deviation" in line for line in notes)
    backbone = excb.load(out)
    assert backbone.entry.architecture.channels == image_channels(backbone) == BANDS
    assert backbone.transform.pixels == PIXELS
    values = np.stack([np.load(bands.file(index)) for index in range(len(bands))]) / 10_000
    np.testing.assert_allclose(backbone.transform.mean, values.mean((0, 1, 2)), atol=0.005)
    np.testing.assert_allclose(backbone.transform.std, values.std((0, 1, 2)), atol=0.005)
    assert backbone.embed([bands.file(0), bands.open(1)]).shape == (2, 256)
    assert torch.equal(backbone.embed(bands.file(1)), backbone.embed(bands.open(1)))


def test_the_same_call_resumes(bands: ImageSet, trained: tuple[Path, list[str]]) -> None:
    notes = KeptNotes()
    assert run_training(small("conv4_tiny"), bands, trained[0], notes, verdict=False) == 0
    assert any("the run is finished" in line for line in notes.lines)
    with pytest.raises(UserError, match=r"belongs to another run \(data.channels was None, now 12"):
        run_training(small("conv4_tiny", data={"channels": 12}), bands, trained[0], notes, verdict=False)


def test_what_is_said_before_a_run_is_of_the_run(
    bands: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dry run, the doctor and the plan know what the run takes from its images, before it and when it resumes."""
    own = [word for word in OVERRIDES if not word.startswith("model.")]
    words = ["conv4_tiny", "--data", str(bands.root), "data.range=0..10000", *own]
    run = [*words, "--out", str(tmp_path / "run")]
    assert main([*run, "--dry-run"]) == 0
    assert f"it can run, into {tmp_path / 'run'}\n" in capsys.readouterr().out
    assert main([*run, "--quiet"]) == 0
    steps = 3 * (len(bands) // 8)
    assert main([*run, "--dry-run"]) == 0
    assert f"it can run, into {tmp_path / 'run'}: {steps} of {steps} steps are done" in capsys.readouterr().out
    main(["doctor", *run, "--json"])
    checks = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert "holds a run, which the same command resumes" in checks["run folder"]["found"]
    assert main(["plan", *words, "--measure", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["parameters"]["teacher"]["backbone"]
    assert planned == sum(each.numel() for each in excb.load(tmp_path / "run").network.parameters())


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (["data.channels=4"], "have 12 channels, not 4"),
        (["data.channels=1"], "have 12 channels, not 1"),
        (["data.channels=3"], "images of 12 channels have not 3"),
        (["data.channels=3", "data.range=0..10000"], "images of 12 channels have not 3"),
        (["data.channels=4", "data.range=0..10000"], "have 12 channels, not 4"),
        (["data.range=0..1,0..2,0..3"], "12 channels from 0..1,0..2,0..3 are no pixels"),
    ],
)
def test_declared_channels_that_the_images_do_not_have(
    bands: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str], declared: list[str], words: str
) -> None:
    own = [word for word in OVERRIDES if not word.startswith("model.")]
    assert main(["conv4_tiny", "--data", str(bands.root), "--out", str(tmp_path), *own, *declared]) == 2
    assert words in capsys.readouterr().err


def test_pictures_declared_as_of_other_channels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = str(write_images(tmp_path / "images"))
    own = [word for word in OVERRIDES if not word.startswith("model.")]
    assert main(["conv4_tiny", "--data", images, "--out", str(tmp_path / "run"), *own, "data.channels=4"]) == 2
    assert "have 3 channels, not 4" in capsys.readouterr().err


@pytest.fixture(scope="module")
def adapted(bands: ImageSet, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    out, notes = tmp_path_factory.mktemp("adapted") / "run", KeptNotes()
    assert run_training(small("adapt", init="conv4_photos"), bands, out, notes) == 0
    return out, notes.lines


def test_a_network_of_colours_is_adapted(adapted: tuple[Path, list[str]]) -> None:
    out, notes = adapted
    assert any("its first layer, of 3 channels, is adapted to 12 as timm does" in line for line in notes)
    report = json.loads((out / "report.json").read_text())
    assert {"pixels", "colour_histogram", "patches", "start"} <= report["verdict"]["references"].keys()
    start = excb.load(out / "checkpoints" / "step-0.pt").network.get_parameter("blocks.0.0.weight")
    theirs = excb.load("conv4_photos").network.get_parameter("blocks.0.0.weight")
    torch.testing.assert_close(start[:, 4], theirs[:, 1] * 3 / BANDS)


def test_an_adapted_network_is_embedded_evaluated_and_exported(
    bands: ImageSet, adapted: tuple[Path, list[str]], tmp_path: Path
) -> None:
    out, backbone = adapted[0], excb.load(adapted[0])
    files = [bands.file(index) for index in range(4)]
    rows = backbone.embed(files)
    vectors = excb.embed(out, [str(file) for file in files], workers=0, quiet=True)
    torch.testing.assert_close(torch.from_numpy(np.asarray(vectors.vectors)), rows, rtol=1e-4, atol=1e-5)
    assert vectors.model["preprocessing"] == backbone.transform.to_dict()
    even, odd = (Subset(bands, np.arange(first, len(bands), 2)) for first in (0, 1))
    task, knn = Task.prepare(out, even, odd, device="cpu", batch=8, workers=0), PROTOCOLS["knn"]
    result = knn.measure(task, knn.options(k=(3,)), KeptNotes()).result
    assert result.checkpoint["preprocessing"]["pixels"] == PIXELS.to_dict()
    assert excb.load(export(str(out), tmp_path / "exported")).transform == backbone.transform
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name}: not installed, so ONNX is not compared")
    onnx = export(str(out), tmp_path / "network.onnx", format="onnx")
    session = importlib.import_module("onnxruntime").InferenceSession(onnx, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {"images": torch.stack([backbone.transform(file) for file in files]).numpy()})
    torch.testing.assert_close(torch.from_numpy(theirs), rows, rtol=1e-3, atol=1e-4)


def test_a_network_of_bands_continues_on_bands_alone(
    bands: ImageSet, trained: tuple[Path, list[str]], tmp_path: Path
) -> None:
    notes = KeptNotes()
    recipe = small("adapt", init=str(trained[0]), adapt={"lora_rank": 0})
    assert run_training(recipe, bands, tmp_path / "run", notes, verdict=False) == 0
    assert excb.load(tmp_path / "run").transform.mean == excb.load(trained[0]).transform.mean
    colours = ImageSet(bands.root.parent / "pictures", [name.replace(".npy", ".png") for name in bands.paths])
    with pytest.raises(UserError, match="takes images of 12 channels, and these have 3"):
        run_training(recipe, colours, tmp_path / "other", notes)


@pytest.mark.usefixtures("full_end")  # it reads the verdict
@pytest.mark.parametrize("sees", ["image", "view"])
def test_a_teacher_of_colours_sees_the_chosen_channels(bands: ImageSet, tmp_path: Path, sees: str) -> None:
    distil = {"teachers": ("conv4_photos",), "samples": 16, "clusters": 4, "teacher_sees": sees}
    recipe = small("distil", model={"backbone": "conv4", "options": {}}, distil=distil)
    with pytest.raises(
        UserError, match=r"conv4_photos takes 3 channels, and the images have 12.*teacher_channels=2,1,0"
    ):
        run_training(recipe, bands, tmp_path / "run", KeptNotes())
    recipe = recipe.change(distil={"teacher_channels": (3, 2, 1)})
    assert run_training(recipe, bands, tmp_path / "run", KeptNotes()) == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert "conv4_photos" in report["verdict"]["references"]


def test_channels_that_no_teacher_has_to_choose_are_idle(
    bands: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    colours = ImageSet(bands.root.parent / "pictures", [name.replace(".npy", ".png") for name in bands.paths])
    distil = {"teachers": ("conv4_photos",), "samples": 16, "clusters": 4, "teacher_channels": (2, 1, 0)}
    recipe = small("distil", model={"backbone": "conv4", "options": {}}, distil=distil)
    assert run_training(recipe, colours, tmp_path / "run", Reporter(), verdict=False) == 0
    assert "distil.teacher_channels has no use: every teacher takes 3 channels" in capsys.readouterr().err
