"""References beside accuracies: guessing against counts, the same network untrained, and a warning below guessing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import excb
from excb.console import Reporter
from excb.images.scanning import scan_folder
from excb.references.untrained import estimate_batchnorm
from excb.results.result import Result
from excb.transfer.cli import main
from excb.transfer.knn.protocol import evaluate
from excb.transfer.reporting.references import below, print_references
from excb.transfer.task import Task
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import features_by_loop, knn_by_loop, write_folder
from tests.transfer.result_files import result

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("references")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    for part, each, seed in (("train", 3, 1), ("test", 2, 2)):
        write_folder(place / "data" / part, each=each, seed=seed, classes=("ant", "bee", "cat"))
        write_folder(place / "data" / part, each=4 * each, seed=seed + 5, classes=("dog",))
    return place


def knn(place: Path, *words: str, ckpt: str = "") -> int:
    usual = ["--ckpt", ckpt or str(place / "run"), "--data", str(place / "data"), "--no-cache", "--k", "5"]
    return int(main(["knn", *usual, "--workers", "0", "--device", "cpu", *words]))


def test_every_accuracy_has_its_references(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = place / "out" / "knn.json"
    assert knn(place, "--untrained", "--out", str(file)) == 0
    out = capsys.readouterr().out
    assert "References, %" in out
    assert "untrained" in out.partition("References")[2]
    found = Result.read(file)
    # Twelve of twenty-one train images, and eight of fourteen test images, are dogs; there are four classes.
    assert found.references["majority"] == {"knn_top1_k5": round(100 * 8 / 14, 4), "knn_top5_k5": 100.0}
    assert found.references["chance"] == {"knn_top1_k5": 25.0, "knn_top5_k5": 100.0}

    transform = excb.load(place / "run").transform
    other = excb.load("untrained:timm:resnet10t")
    assert other.width != excb.load(place / "run").width  # the twin has the run's own options
    twin = Task.prepare(
        str(place / "run"), place / "data" / "train", place / "data" / "test", device="cpu", workers=0
    ).untrained()
    sides = [features_by_loop(twin.backbone, place / "data" / part, transform) for part in ("train", "test")]
    top1, _ = knn_by_loop(*sides[0], *sides[1], k=5, temperature=0.07)
    assert found.references["untrained"]["knn_top1_k5"] == pytest.approx(top1, abs=1e-3)
    assert found.references["untrained"] != found.figures


def test_the_twin_differs_in_its_weights_alone(place: Path) -> None:
    task = Task.prepare(
        str(place / "run"), place / "data" / "train", place / "data" / "test", device="cpu", workers=0, crop=20
    )
    twin = task.untrained()
    assert (twin.preprocessing, twin.train, twin.backbone.width) == (
        task.preprocessing,
        task.train,
        task.backbone.width,
    )
    ours, theirs = task.backbone.network.state_dict(), twin.backbone.network.state_dict()
    assert ours.keys() == theirs.keys()
    means = next(value for name, value in theirs.items() if name.endswith("running_mean"))
    assert float(means.abs().max()) > 0  # of the images, not of a new network


def test_an_untrained_checkpoint_gets_the_statistics_of_the_train_images(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = place / "out" / "conv4.json"
    assert knn(place, "--resize", "32", "--crop", "32", "--out", str(file), ckpt="untrained:conv4") == 0
    capsys.readouterr()
    found = Result.read(file)
    assert found.checkpoint["name"] == "untrained:conv4"
    assert "random weights, with the BatchNorm statistics of the train images" in found.notes
    backbone = excb.load("untrained:conv4")
    transform = replace(backbone.transform, resize=32, crop=32)
    estimate_batchnorm(backbone.network, scan_folder(place / "data" / "train"), transform)
    sides = [features_by_loop(backbone, place / "data" / part, transform) for part in ("train", "test")]
    top1, _ = knn_by_loop(*sides[0], *sides[1], k=5, temperature=0.07)
    assert found.figures["knn_top1_k5"] == pytest.approx(top1, abs=1e-3)


def test_figures_below_guessing_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    poor = replace(result({"knn_top1_k20": 40.0}), references={"majority": {"knn_top1_k20": 41.0}})
    assert below(poor) == [
        "knn_top1_k20 of 40.00 % is below the 41.00 % of always guessing the most frequent class: nothing was learned"
    ]
    assert below(replace(poor, references={"majority": {"knn_top1_k20": 40.0}})) == []
    print_references(poor, Reporter())
    out, err = capsys.readouterr()
    assert "40.00" in out
    assert "41.00" in out
    assert "chance" not in out
    assert "warning: knn_top1_k20 of 40.00 % is below" in err


def test_a_result_below_guessing_says_so_in_its_notes(place: Path) -> None:
    task = Task.prepare(str(place / "run"), place / "data" / "train", place / "data" / "test", device="cpu", workers=0)
    assert task.train.labels is not None
    labels = np.roll(task.train.labels, 5)
    images: Any = task.train
    shuffled = replace(task, train=replace(images, labels=labels))
    found, scored = evaluate(shuffled, Reporter(quiet=True), ks=[1], table=False)
    worse = found.figures["knn_top1_k1"] < found.references["majority"]["knn_top1_k1"]
    assert worse == any("is below" in note for note in found.notes)
    assert torch.equal(scored.targets, torch.from_numpy(task.test.labels))


def test_results_without_references_are_read_and_written_as_before() -> None:
    old = result({"knn_top1_k20": 40.0})
    assert "references" not in json.loads(old.to_json())
    assert Result.from_json(old.to_json()) == old
    new = replace(old, references={"chance": {"knn_top1_k20": 1.0}})
    assert Result.from_json(new.to_json()) == new
