"""Tests of `excb-eval clusters` from the command line to its folder, on runs of a tiny network."""

import argparse
import csv
import hashlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import normalized_mutual_info_score
from torch.nn import functional as F

import excb
from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.errors import UserError
from excb.hub.importing import import_file
from excb.networks.architecture import Architecture
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from excb.transfer.clusters.files import has_parquet, read_sizes
from excb.transfer.clusters.options import ClusterOptions
from excb.zoo.export import export
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import CLASSES, features_by_loop, write_folder

pytestmark = pytest.mark.usefixtures("one_thread")

FILES = ["assignments.csv", "atlas.html", "clusters.json", "sizes.png", "sizes.svg"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with more clusters than a few, its export, and labelled images under train/ beside test/."""
    place = tmp_path_factory.mktemp("clusters")
    recipe = tiny_recipe(eval_resize=36, eval_crop=32).change(method={"clusters": 30})
    write_run(place / "run", 5, recipe=recipe)
    export(str(place / "run"), place / "exported")
    write_folder(place / "data" / "train", each=5, seed=1)
    write_folder(place / "data" / "test", each=1, seed=2)
    return place


def call(*words: str | int | Path) -> int:
    return main(["clusters", *map(str, words), "--workers", "0", "--device", "cpu", "--no-cache"])


def oracle(place: Path, network: str = "teacher") -> tuple[np.ndarray, list[str]]:
    """z [N, K] of the train images, one at a time in plain torch, and each one's class."""
    backbone = excb.load(place / "run", network=network, heads=True)  # type: ignore[arg-type]
    assert backbone.heads is not None
    heads = getattr(backbone.heads, network).double()
    features, names = features_by_loop(backbone, place / "data" / "train")
    with torch.no_grad():
        projected = torch.stack([heads.projector(row[None])[0] for row in torch.from_numpy(features)])
        z = F.normalize(projected, dim=1) @ F.normalize(heads.centroids.weight, dim=1).T
    return z.numpy(), names


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((folder / "assignments.csv").read_text(encoding="utf-8"), newline="")))


@pytest.mark.parametrize(("source", "network", "batch"), [("run", "teacher", 3), ("exported", "teacher", 64)])
def test_the_folder_holds_what_a_naive_pass_finds(
    place: Path, tmp_path: Path, source: str, network: str, batch: int
) -> None:
    out = tmp_path / "out"
    assert call("--ckpt", place / source, "--data", place / "data", "--out", out, "--batch-size", batch, "--quiet") == 0
    expected = FILES + ["assignments.parquet"] * has_parquet()
    assert sorted(file.name for file in out.iterdir()) == sorted(expected)
    z, names = oracle(place, network)
    order = np.argsort(-z, axis=1)
    rows = table(out)
    assert [int(row["cluster"]) for row in rows] == order[:, 0].tolist()
    assert [int(row["second_cluster"]) for row in rows] == order[:, 1].tolist()
    np.testing.assert_allclose([float(row["similarity"]) for row in rows], z.max(axis=1), atol=1e-5)
    assert [row["label"] for row in rows] == names

    result = ResultRecord.from_json((out / "clusters.json").read_text())
    assert result.protocol == "clusters"
    assert result.predictions["sha256"] == hashlib.sha256((out / "assignments.csv").read_bytes()).hexdigest()
    sizes = np.bincount(order[:, 0], minlength=30)
    labels = [CLASSES.index(name) for name in names]
    figures = result.figures
    assert figures["empty_clusters_unbalanced"] == (sizes == 0).sum()
    s = run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(place / "run")[0])["model"]["sizes"].double().numpy()
    balanced = np.where(s * 30 < 1, 1 - (1 - z) * s * 30, (1 + z) / (s * 30) - 1)  # Eq. 10
    assert figures["empty_clusters_balanced"] == 30 - len(set(balanced.argmax(1).tolist()))
    assert figures["empty_percent_balanced"] == pytest.approx(figures["empty_clusters_balanced"] / 0.3, abs=1e-4)
    assert figures["largest_relative_size"] == pytest.approx(sizes.max() * 30 / 35, abs=1e-4)
    nmi = normalized_mutual_info_score(labels, order[:, 0])
    assert figures["nmi_percent"] == pytest.approx(100 * nmi, abs=1e-3)
    assert result.notes[0].startswith("1.17 images a cluster: ")
    assert read_sizes(out)[1].tolist() == sizes.tolist()
    with Image.open(out / "sizes.png") as picture:
        assert picture.width > 800
    assert f"empty {int((sizes == 0).sum())} (" in (out / "sizes.svg").read_text()


def test_student_and_images_without_labels(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ant = place / "data" / "train" / "ant"
    assert call("--ckpt", place / "run", "--data", ant, "--network", "student", "--json", "--quiet") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checkpoint"]["network"] == "student"
    assert not any(name.startswith(("purity", "nmi")) for name in found["figures"])
    z = oracle(place, "student")[0][:5]
    assert found["figures"]["largest_images"] == np.bincount(z.argmax(axis=1)).max()
    assert any("fewer images than clusters" in note for note in found["notes"])


def test_dino_full_checkpoint(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of DINO's published layout: DDP in front of all names but those of a ViT's teacher."""
    torch.manual_seed(0)
    backbone = Architecture("resnet18").build()
    head: dict[str, Any] = {}
    for layer, (inputs, outputs) in {0: (512, 16), 2: (16, 16), 4: (16, 8)}.items():
        head[f"mlp.{layer}.weight"], head[f"mlp.{layer}.bias"] = torch.randn(outputs, inputs), torch.randn(outputs)
    head["last_layer.weight_g"], head["last_layer.weight_v"] = torch.rand(9, 1) + 0.5, torch.randn(9, 8)
    network = {f"module.backbone.{name}": value for name, value in backbone.state_dict().items()}
    network |= {f"module.head.{name}": value for name, value in head.items()}
    file = tmp_path / "dino_full.pth"
    other = {name: value + 1 for name, value in network.items()}
    torch.save({"student": other, "teacher": network, "args": argparse.Namespace(arch="resnet18")}, file)
    folder = import_file(file, "dino_full", allow=["argparse.Namespace"], reporter=Reporter(quiet=True)).folder
    out = tmp_path / "out"
    data = place / "data" / "test"
    assert call("--ckpt", folder, "--data", data, "--resize", "48", "--crop", "40", "--out", out, "--quiet") == 0
    loaded = excb.load(folder)
    features, _ = features_by_loop(loaded, data, replace(loaded.transform, resize=48, crop=40))
    rows = torch.from_numpy(features).float()
    for layer in (0, 2, 4):
        rows = F.linear(rows, head[f"mlp.{layer}.weight"], head[f"mlp.{layer}.bias"])
        rows = F.gelu(rows) if layer < 4 else F.normalize(rows, dim=1)
    logits = rows @ torch._weight_norm(head["last_layer.weight_v"], head["last_layer.weight_g"]).T
    assert [int(row["cluster"]) for row in table(out)] == logits.argmax(1).tolist()


def test_several_checkpoints_in_one_picture(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = place / "data" / "test"
    assert call("--ckpt", place / "run", "--data", data, "--out", tmp_path / "one", "--quiet") == 0
    words = ("--ckpt", place / "run", "--data", data, "--network", "student", "--quiet")
    assert call(*words, "--out", tmp_path / "two", "--compare", tmp_path / "one") == 0
    assert (tmp_path / "two" / "sizes.svg").read_text() != (tmp_path / "one" / "sizes.svg").read_text()
    capsys.readouterr()
    assert call(*words, "--out", tmp_path / "three", "--compare", place / "run") == 2
    out, err = capsys.readouterr()
    assert "name a folder of `excb-eval clusters --out`" in err
    assert out == ""  # before the work, not after it
    assert call(*words, "--compare", tmp_path / "one") == 2
    assert "name a place for them with --out DIR" in capsys.readouterr().err
    assert not (tmp_path / "three").exists()
    (tmp_path / "one" / "assignments.csv").write_text("path,cluster\n")
    with pytest.raises(UserError, match="does not hold the assignments of"):
        read_sizes(tmp_path / "one")


def test_a_run_without_clusters_has_none_to_show(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simclr = {"clustering": False, "contrast": 1.0, "predictor": False, "teacher_statistics": "averaged"}
    recipe = tiny_recipe(eval_resize=36, eval_crop=32).change(method=simclr)
    write_run(tmp_path / "run", 5, recipe=recipe)
    assert call("--ckpt", tmp_path / "run", "--data", place / "data") == 2
    assert "was trained without clusters" in capsys.readouterr().err


def test_a_small_budget_is_reported(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--ckpt", place / "run", "--data", place / "data" / "test", "--out", tmp_path / "out")
    assert call(*words, "--atlas-mb", "0.004") == 0
    err = capsys.readouterr().err
    assert "exemplars: 0.004 MB are full (--atlas-mb takes more, --exemplars fewer)" in err
    assert "no picture of" in (tmp_path / "out" / "atlas.html").read_text(encoding="utf-8")


def test_features_of_any_checkpoint_are_clustered(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = place / "data"
    assert call("--ckpt", "conv4_photos", "--data", data, "--quiet") == 2
    assert "`excb-eval clusters --method kmeans` needs none" in capsys.readouterr().err
    assert call("--ckpt", "conv4_photos", "--data", data, "--k", 5, "--out", tmp_path / "out", "--quiet") == 0
    result = ResultRecord.from_json((tmp_path / "out" / "clusters.json").read_text())
    assert (result.settings["clusters"], result.settings["method"], result.settings["k_by"]) == (5, "kmeans", "given")
    rows = table(tmp_path / "out")
    assert {int(row["cluster"]) for row in rows} == set(range(5))
    embedded = excb.embed("conv4_photos", data / "train", workers=0, quiet=True, device="cpu", no_cache=True)
    assert embedded.clusters(5).numbers.tolist() == [int(row["cluster"]) for row in rows]
    assert (tmp_path / "out" / "atlas.html").is_file()
    assert not any("at random" in note for note in result.notes)
    assert call("--ckpt", "conv4_photos", "--data", data, "--k", 5, "--method", "hdbscan", "--quiet") == 2
    assert "--k is for k-means: HDBSCAN finds the number itself" in capsys.readouterr().err


def test_a_dry_run_says_how_features_are_clustered_and_refuses_what_the_run_does(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ("--ckpt", "conv4_photos", "--data", place / "data", "--quiet")
    for words, line in (
        (("--k", 5), "k-means of these features: 5 clusters"),
        (("--method", "hdbscan"), "HDBSCAN of these features"),
    ):
        assert call(*usual, *words, "--dry-run") == 0
        assert line in capsys.readouterr().out.splitlines()
    assert call("--ckpt", place / "run", *usual[2:], "--dry-run") == 0
    assert "every image's nearest centroid" in capsys.readouterr().out.splitlines()
    monkeypatch.setattr("excb.transfer.opening.task_on", None)  # it is refused before the network is loaded
    for dry in ((), ("--dry-run",)):
        assert call(*usual, "--k", 999, *dry) == 2
        assert "k is 999: clusters of " in capsys.readouterr().err


def test_what_cannot_be_done_is_one_line(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(Architecture("resnet18").build().state_dict(), tmp_path / "backbone.pth")
    (tmp_path / "file").write_text("")
    broken = tmp_path / "broken"
    write_folder(broken, each=1)
    (broken / "ant" / "torn.png").write_bytes(b"no image")
    data = place / "data" / "test"
    usual = ("--ckpt", place / "run", "--data", data)
    cases = [
        (("--ckpt", tmp_path / "backbone.pth", "--data", data), "holds a backbone without heads"),
        (("--ckpt", place / "run", "--data", tmp_path / "nothing"), "nothing"),
        ((*usual, "--out", tmp_path / "file"), "is a file: name a folder"),
        ((*usual, "--out", data / "clusters"), "name a place outside that folder"),
        (
            (*usual, "--out", tmp_path / "x", "--exemplars", "0"),
            "--exemplars must be at least 1",
        ),
        (
            (*usual, "--exemplars", "3"),
            "--exemplars only changes written files: .* --out",
        ),
        ((*usual, "--duplicates", "1.5"), "--duplicates is a cosine below 1"),
        (("--ckpt", place / "run", "--data", broken), "1 of 8 images in .*broken cannot be read, such as ant/torn.png"),
    ]
    for words, message in cases:
        assert call(*words, "--quiet") == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1, err
        assert re.search(message, err), err


def test_dry_run_estimates_and_writes_nothing(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--ckpt", place / "run", "--data", place / "data", "--out", tmp_path / "out")
    assert call(*words, "--dry-run", "--quiet") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("it can run")
    assert lines[1].startswith("images: 35 images")
    assert len(lines) == 4
    assert not (tmp_path / "out").exists()


def test_options_have_bounds() -> None:
    with pytest.raises(UserError, match="--atlas-mb"):
        ClusterOptions(atlas_mb=-1).check(None)
