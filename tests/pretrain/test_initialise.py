"""Tests of initial weights of ViTs, and that how position embeddings are interpolated follows a network everywhere."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

import excb
from excb.checkpoint import run_checkpoint
from excb.checkpoint.stored import Stored
from excb.errors import UserError
from excb.images.pixels import Pixels
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.pretrain.__main__ import main
from excb.pretrain.initialise import _values_of, adopted, build_model
from excb.pretrain.overrides import ADOPTED, apply, find_recipe
from excb.pretrain.recipes import RECIPES
from excb.pretrain.show import recipe_rows
from excb.zoo.export import export
from tests.pretrain.small_runs import OVERRIDES, write_images
from tests.run_files import TINY_VIT, features, pictures, tiny_recipe

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")

VIT = (
    *(value for value in OVERRIDES if not value.startswith("model.options=")),
    'model.options={"embed_dim": 12, "depth": 2, "num_heads": 2, "patch_size": 8, "img_size": 32}',
    "model.backbone=vit_tiny",
    "optim.epochs=1",
)
DINO = ("model.position_interpolation=dino", "model.class_token_std=0.02")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that interpolates as DINO."""
    out = tmp_path_factory.mktemp("runs") / "dino"
    assert main(command(images, out, *DINO)) == 0
    return out


def command(images: Path, out: Path, *overrides: str) -> list[str]:
    return ["train", "quickstart", "--data", str(images), "--out", str(out), "--quiet", *VIT, *overrides]


def antialiased(run: Path, tmp_path: Path) -> Path:
    """The same weights in a file as versions wrote it that did not have the option."""
    contents = run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(run)[0])
    del contents["architecture"]["options"]["position_interpolation"]
    for name in ("position_interpolation", "class_token_std"):
        del contents["recipe"]["model"][name]
    file = tmp_path / "old.pt"
    run_checkpoint.write_run_checkpoint(contents, file)
    return file


@pytest.mark.parametrize("img_size", [None, 16, 48])
def test_an_export_interpolates_as_the_run_did(run: Path, tmp_path: Path, img_size: int | None) -> None:
    folder = export(str(run), tmp_path / "exported")
    trained, exported, old = (excb.load(path, img_size=img_size) for path in (run, folder, antialiased(run, tmp_path)))
    again = excb.load(export(str(folder), tmp_path / "again"), img_size=img_size)
    for side in (16, 32, 48):
        batch = pictures(2, side)
        expected = features(trained, batch)
        torch.testing.assert_close(features(exported, batch), expected, rtol=0, atol=0)
        torch.testing.assert_close(features(again, batch), expected, rtol=0, atol=0)
        same = side == 32 and img_size in (None, 32)  # the size of its own embeddings
        assert torch.equal(features(old, batch), expected) == same, side


def test_timm_builds_an_export_and_refuses_sizes_that_it_would_interpolate_otherwise(run: Path, tmp_path: Path) -> None:
    folder = export(str(run), tmp_path / "exported")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["excb"]["architecture"]["options"]["position_interpolation"] == "dino"
    network: Any = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        assert torch.equal(network(pictures(2, 32)), features(excb.load(run), pictures(2, 32)))
        with pytest.raises(AssertionError, match="height"):
            network(pictures(2, 16))


def test_a_run_resumes_with_its_own_interpolation_only(
    run: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(images, run, *DINO)) == 0
    assert main(command(images, run)) == 2
    said = capsys.readouterr().err
    assert "model.position_interpolation was dino, now antialiased" in said
    assert "model.class_token_std was 0.02, now 1e-06" in said


def test_an_older_run_goes_on_as_it_was_trained(images: Path, tmp_path: Path) -> None:
    """Its recipe.json lacks the fields; with today's defaults it is the same run."""
    out = tmp_path / "run"
    assert main(command(images, out)) == 0
    record = json.loads((out / "recipe.json").read_text(encoding="utf-8"))
    for name in ("position_interpolation", "class_token_std"):
        del record["recipe"]["model"][name]
    (out / "recipe.json").write_text(json.dumps(record), encoding="utf-8")
    assert main(command(images, out)) == 0
    options = run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(out)[0])["architecture"]["options"]
    assert "position_interpolation" not in options


def test_init_takes_the_weights_and_says_that_the_interpolation_changes(
    run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loud = [word for word in command(images, tmp_path / "run", f"init={run}") if word != "--quiet"]
    assert main(loud) == 0
    said = capsys.readouterr().err
    assert "its position_interpolation was dino, now antialiased (model.position_interpolation=dino keeps it)" in said
    assert main([*command(images, tmp_path / "run2", f"init={run}", "model.backbone=vit_small")]) == 2
    assert "set model.backbone=vit_tiny or choose" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------------
# init adopts
# ---------------------------------------------------------------------------------------------------------------------

PLAIN = tuple(value for value in OVERRIDES if not value.startswith(("model.", "views.")))


def started(images: Path, out: Path, *overrides: str) -> list[str]:
    return ["quickstart", "--data", str(images), "--out", str(out), *PLAIN, "optim.epochs=1", *overrides]


def test_init_decides_architecture_and_sizes(
    run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(started(images, out, f"init={run}", "views.local_size=24")) == 0
    assert f"init={run} sets backbone vit_tiny embed_dim=12 depth=2" in capsys.readouterr().err
    recipe, theirs = (json.loads((each / "recipe.json").read_text(encoding="utf-8"))["recipe"] for each in (out, run))
    for name in ("backbone", "options", "position_interpolation"):
        assert recipe["model"][name] == theirs["model"][name]
    assert (recipe["views"]["global_size"], recipe["views"]["eval_crop"]) == (32, 32)
    assert recipe["views"]["local_size"] == 24  # named
    assert run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(out)[0])["architecture"]["name"] == "vit_tiny"


def test_a_run_resumes_without_the_checkpoint_that_it_adopted(run: Path, images: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "run"
    shutil.copytree(run, source)
    assert main(started(images, out, f"init={source}")) == 0
    shutil.rmtree(source)
    assert main(started(images, out, f"init={source}")) == 0
    record = json.loads((out / "recipe.json").read_text(encoding="utf-8"))
    del record["recipe"]["model"]["class_token_std"]  # of an earlier version
    (out / "recipe.json").write_text(json.dumps(record), encoding="utf-8")
    assert main(started(images, out, f"init={source}")) == 0


def test_a_backbone_of_ones_own_conflicts_and_both_are_named(
    run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(started(images, tmp_path / "run", f"init={run}", "model.backbone=resnet18")) == 2
    said = capsys.readouterr().err
    assert f"init={run} is a vit_tiny" in said
    assert "the recipe's backbone a resnet18" in said


def test_a_foreign_checkpoint_decides_by_its_preprocessing(tmp_path: Path) -> None:
    """Ours without a recipe among its facts: the bundled network, exported for other programs, has 80 pixels."""
    lines: list[str] = []
    recipe = adopted(apply(find_recipe("rn50_100ep"), ["init=tiny_grocery", "views.eval_resize=300"]), lines.append)
    assert recipe.model.architecture == excb.load("tiny_grocery").entry.architecture
    assert (recipe.views.global_size, recipe.views.local_size) == (64, 32)  # its own run's
    assert (recipe.views.eval_crop, recipe.views.eval_resize) == (80, 300)
    assert recipe.adopts == ()
    assert len(lines) == 1
    foreign = Stored(tmp_path, {}, Architecture("resnet18"), Preprocessing(96, 80))
    views = _values_of(foreign, find_recipe("rn50_100ep"))["views"]
    assert [views[name] for name in ("global_size", "eval_crop", "eval_resize")] == [80, 80, 96]
    assert views["local_size"] == 32  # 96 / 224 of 80, by sixteens


@pytest.mark.parametrize(
    "theirs",
    [
        Preprocessing(80, 80, crop_mode="squash", interpolation="lanczos"),
        Preprocessing(90, 80, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), crop_mode="border"),
        Preprocessing(91, 80, interpolation="bicubic", corner="down"),
        Preprocessing(90, 80, pixels=Pixels(colours="stored")),
    ],
)
@pytest.mark.parametrize("name", ["rn50_100ep", "adapt"])
def test_evaluation_is_that_of_the_network_it_starts_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, theirs: Preprocessing, name: str
) -> None:
    stored = Stored(tmp_path, {}, Architecture("resnet18"), theirs)
    monkeypatch.setattr("excb.pretrain.initialise.loading.read", lambda _: stored)
    lines: list[str] = []
    recipe = adopted(apply(find_recipe(name), ["init=x"]), lines.append)
    assert replace(recipe.views.preprocessing, pixels=theirs.pixels) == theirs
    assert recipe.data.colours == theirs.pixels.colours
    assert lines[-1].endswith(f"evaluation: {theirs.in_short}")
    own = adopted(apply(find_recipe(name), ["init=x", "views.eval_crop_mode=center"]), lines.append)
    assert own.views.preprocessing == replace(recipe.views.preprocessing, crop_mode="center")


def test_what_is_named_is_not_adopted() -> None:
    recipe = find_recipe("quickstart")
    assert apply(recipe, []).adopts == ()
    assert "views.global_size" not in apply(recipe, ["init=x", "views.global_size=40"]).adopts
    assert apply(recipe, ["init=x", "model.backbone=resnet18"]).adopts == ()
    assert apply(recipe, ['model.options={"depth": 2}', "init=x"]).adopts == ()
    later = apply(apply(recipe, ["init=x"]), ["views.global_size=40", "run.seed=3"])
    assert set(ADOPTED) - set(later.adopts) == {"views.global_size"}
    rows = {row["field"]: row for row in recipe_rows(recipe, ["init=x", "views.local_size=16"])}
    assert (rows["model.backbone"]["value"], rows["model.backbone"]["from"]) == ("the checkpoint's", "init")
    assert rows["views.local_size"]["value"] == 16


@pytest.mark.parametrize("deviation", [0.02, 0.5])
def test_the_class_token_starts_as_wide_as_the_recipe_says(deviation: float) -> None:
    wide = TINY_VIT | {"options": {"embed_dim": 1200, "depth": 1, "num_heads": 2, "patch_size": 16, "mlp_ratio": 0.01}}
    recipe = tiny_recipe(TINY_VIT | wide | {"class_token_std": deviation})
    model = build_model(recipe)
    token, copied = model.student.backbone.cls_token, model.teacher.backbone.cls_token
    assert isinstance(token, torch.Tensor)
    assert isinstance(copied, torch.Tensor)
    assert token.std().item() == pytest.approx(deviation, rel=0.1)
    assert abs(token.mean().item()) < 0.1 * deviation
    assert torch.equal(token, copied)


def test_the_usual_class_token_is_timms_and_networks_without_one_are_refused() -> None:
    token = build_model(tiny_recipe(TINY_VIT)).student.backbone.cls_token
    assert isinstance(token, torch.Tensor)
    assert 0 < token.abs().max().item() < 1e-5
    with pytest.raises(UserError, match=r"resnet10t has no class token: set model\.class_token_std=1e-06"):
        build_model(tiny_recipe().change(model={"class_token_std": 0.02}))
    with pytest.raises(UserError, match=r"set model\.position_interpolation=antialiased or dino"):
        RECIPES["quickstart"]().change(model={"options": {"position_interpolation": "dino"}})
