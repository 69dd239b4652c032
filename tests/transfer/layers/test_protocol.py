"""Tests of the layers protocol: a planted signal is found, nothing is chosen on test images, files, mistakes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from excb.console import Reporter
from excb.errors import UserError
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from excb.transfer.features.parts import Part, Shapes
from excb.transfer.layers.cells import Cell, cells_of
from excb.transfer.layers.options import LayersOptions
from excb.transfer.layers.protocol import measure
from excb.transfer.leaderboard.submission import check_result
from excb.transfer.linear import protocol as linear
from excb.transfer.linear.options import LinearOptions
from excb.transfer.probes.rows import part_rows, shapes_of
from excb.transfer.probes.selection import held_out
from excb.transfer.protocols import kind_of
from excb.transfer.reporting.predictions import Predictions
from excb.transfer.task import Task
from tests.forked import launch
from tests.run_files import TINY_VIT, tiny_recipe, write_run
from tests.transfer.labelled_images import changed, write_folder
from tests.transfer.layers.planted import BLOCK, Planted, write_planted

pytestmark = pytest.mark.usefixtures("one_thread")
QUIET = Reporter(quiet=True)
LONG = LayersOptions(attentive=("all",), epochs=150)  # two steps an epoch: attention needs some hundreds
FOUR_BLOCKS = TINY_VIT | {"options": TINY_VIT["options"] | {"depth": 4}}
VIT = Shapes(((12, 4, 4),) * 5, own=12, has_class_token=True)
CNN = Shapes(((8, 8, 8), (16, 4, 4), (32, 2, 2)), own=64, has_class_token=False)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Task:
    place = tmp_path_factory.mktemp("planted")
    for name, each, seed in (("train", 60, 1), ("test", 25, 2)):
        write_planted(place / name, each=each, seed=seed)
    return Task.prepare(Planted(), place / "train", place / "test", device="cpu", workers=0)


@pytest.fixture(scope="module")
def found(planted: Task) -> tuple[ResultRecord, Predictions]:
    return measured(planted, LONG)


def measured(task: Task, options: LayersOptions) -> tuple[ResultRecord, Predictions]:
    made = measure(task, options, QUIET)
    return made.result, made.scored


def cell(result: ResultRecord, block: int, pooling: str) -> dict[str, Any]:
    (one,) = [each for each in result.settings["sweep"] if (each["block"], each["pooling"]) == (block, pooling)]
    return dict(one)


def test_a_signal_in_one_block_and_one_patch_is_found_there(found: tuple[ResultRecord, Predictions]) -> None:
    """Only attention tells the marked patch from the others; a mean over patches is little better than guessing."""
    result, _ = found
    chosen = result.settings["chosen"]
    assert (chosen["block"], chosen["pooling"]) == (BLOCK, "attentive")
    assert chosen["holdout_top1"] > 90
    assert result.figures["layers_top1"] > 90
    assert result.figures["layers_default_top1"] < 45
    assert cell(result, BLOCK, "mean")["holdout_top1"] < 80
    for block in (1, 3):
        assert cell(result, block, "attentive")["holdout_top1"] < 60
    assert f"block {BLOCK}, attentive is chosen" in result.notes[0]


def test_the_usual_way_finds_it_in_a_second_pass_over_two_blocks(planted: Task) -> None:
    network: Any = planted.backbone.network
    before = network.passes
    result, _ = measured(planted, LayersOptions())
    once = len(planted.train) + len(planted.test)
    assert (result.settings["chosen"]["block"], result.settings["chosen"]["pooling"]) == (BLOCK, "attentive")
    assert [each["block"] for each in result.settings["sweep"] if each["pooling"] == "attentive"] == [BLOCK, 3]
    assert network.passes - before == once + len(planted.train) + 1  # and the image that the shapes are measured on


def test_all_cells_take_one_pass_over_the_train_images(planted: Task) -> None:
    network: Any = planted.backbone.network
    before = network.passes
    measured(planted, LayersOptions(attentive=("all",), epochs=1))
    assert network.passes - before == len(planted.train) + len(planted.test) + 1


def test_held_out_accuracy_of_a_cell_is_that_of_a_classifier_which_never_saw_these_images(planted: Task) -> None:
    """A nearest-neighbour vote by hand on the mean of a block."""
    result, _ = measured(planted, LayersOptions(probe="knn", poolings=("mean",)))
    part = Part("mean", BLOCK - 1)
    rows = part_rows(planted, planted.train, [part], shapes_of(planted), QUIET, name="train")([part]).all().double()
    assert planted.train.labels is not None
    labels, held = torch.from_numpy(planted.train.labels), torch.from_numpy(held_out(planted.train.labels, 0))
    unit = rows / rows.norm(dim=1, keepdim=True)
    right = 0
    for image in held.nonzero()[:, 0].tolist():
        cosines = unit[~held] @ unit[image]
        nearest = cosines.argsort(descending=True, stable=True)[:20]
        votes = torch.zeros(4, dtype=torch.float64)
        votes.index_add_(0, labels[~held][nearest], (cosines[nearest] / 0.07).exp())
        right += int(votes.argmax() == labels[image])
    assert cell(result, BLOCK, "mean")["holdout_top1"] == pytest.approx(100 * right / int(held.sum()), abs=0.01)


def test_test_labels_choose_nothing(planted: Task) -> None:
    assert planted.test.labels is not None
    other = replace(planted, test=changed(planted.test, labels=planted.test.labels[::-1].copy()))
    short = LayersOptions(attentive=("all",), epochs=2)
    one, two = (measured(task, short)[0] for task in (planted, other))
    assert one.settings == two.settings
    assert one.figures != two.figures


def test_attentive_probes_are_a_linear_protocol(planted: Task) -> None:
    """Of the last map: that of block 3, which says nothing; the settings say how many queries look at it."""
    made = linear.measure(planted, LinearOptions(protocol="attentive", epochs=2), QUIET)
    result, predictions = made.result, made.scored
    assert result.protocol == "linear_attentive"
    assert (result.settings["queries"], result.settings["grid"]) == (1, [4, 4])
    assert len(result.settings["sweep"]) == 4
    assert predictions.values["linear_{}"].shape == (100, 4)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("layers")
    write_run(place / "cnn", 5, recipe=tiny_recipe(eval_resize=48, eval_crop=48))
    write_run(place / "vit", 5, recipe=tiny_recipe(FOUR_BLOCKS, eval_resize=48, eval_crop=48))
    for name, seed in (("train", 1), ("test", 2)):
        write_folder(place / name, each=4, seed=seed)
    return place


def command(place: Path, run: str, *words: str) -> list[str]:
    sets = ["--train", str(place / "train"), "--test", str(place / "test")]
    return ["layers", "--ckpt", str(place / run), *sets, "--no-cache", "--device", "cpu", "--workers", "0", *words]


def test_the_command_writes_figures_predictions_and_a_heat_map(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(place, "cnn", "--epochs", "1", "--out", str(tmp_path / "a.json"))) == 0
    shown = capsys.readouterr().out
    assert "held-out train images (* chosen)" in shown
    assert "default" in shown
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"a.json", "a.npz", "a.confusion.png", "a.layers.png", "a.layers.svg"}
    result = ResultRecord.read(tmp_path / "a.json")
    assert set(result.figures) == {f"layers{part}_top{k}" for part in ("", "_default") for k in (1, 5)}
    assert set(result.intervals) == set(result.figures)
    assert kind_of("layers_default_top1") is not None


def test_a_vit_has_all_poolings_and_json_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(place, "vit", "--probe", "knn", "--json", "--quiet")) == 0
    result = json.loads(capsys.readouterr().out)
    poolings = {each["pooling"] for each in result["settings"]["sweep"]}
    assert poolings == {"default", "cls", "mean", "cls+mean", "gem", "last4"}
    assert len(result["settings"]["sweep"]) == 1 + 4 * 4 + 1
    assert result["protocol"] == "layers_knn"


def test_a_dry_run_says_what_is_kept(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(place, "cnn", "--dry-run")) == 0
    shown = capsys.readouterr().out
    assert "keeps" in shown
    assert "two blocks in another pass" in shown
    assert "logistic regressions for each cell; 5 folds choose" in shown  # of few labels
    assert "epoch" not in shown
    assert main(command(place, "cnn", "--dry-run", "--epochs", "3")) == 0
    shown = capsys.readouterr().out
    assert "heads for each cell, 3 epochs" in shown
    assert "folds" not in shown


def test_two_processes_choose_as_one_does(place: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    words = ("--epochs", "2", "--quiet")
    assert main(command(place, "cnn", *words, "--out", str(one))) == 0
    assert launch("excb.transfer.cli", command(place, "cnn", *words, "--out", str(two)), 2) == 0
    first, second = (ResultRecord.read(file) for file in (one, two))
    assert first.settings == second.settings
    assert (first.figures, first.intervals) == (second.figures, second.intervals)


def test_results_may_stand_in_a_leaderboard(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    assert main(command(place, "cnn", "--epochs", "1", "--untrained", "--quiet", "--out", str(file))) == 0
    assert "layers_top1" in ResultRecord.read(file).references["untrained"]
    check_result(file, ResultRecord.read(file))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--blocks", "9"], "--blocks 9: this backbone has"),
        (["--attentive", "0"], "--attentive 0: this backbone has"),
        (["--attentive", "most"], "takes a number, or best or all or none, not 'most'"),
        (["--attentive", "best", "2"], "--attentive best 2: name blocks by numbers, or best, all or none"),
        (["--poolings", "cls"], "it has no class token"),
        (["--probe", "knn", "--lr", "0.1"], "--probe knn trains nothing"),
        (["--probe", "knn", "--attentive", "all"], "attentive probes are trained"),
        (["--lr", "0"], "--lr must be above 0"),
        (["--epochs", "0"], "--epochs must be at least 1"),
    ],
)
def test_mistakes_end_in_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(command(place, "cnn", *words)) == 2
    assert message in capsys.readouterr().err


def test_cells_of_networks_with_and_without_class_tokens() -> None:
    names = [(each.block, each.pooling) for each in cells_of(VIT, blocks=[5], poolings=None)]
    assert names == [(4, "default"), (4, "cls"), (4, "mean"), (4, "cls+mean"), (4, "gem"), (4, "last4")]
    assert Cell(4, "last4").parts == tuple(Part("cls", block) for block in (1, 2, 3, 4))
    assert [each.text for each in cells_of(CNN, blocks=None, poolings=["gem"])] == [
        "block 3, default",
        "block 1, gem",
        "block 2, gem",
        "block 3, gem",
    ]
    with pytest.raises(UserError, match="fewer than 4 blocks"):
        cells_of(Shapes(VIT.maps[:3], 12, True), blocks=None, poolings=["last4"])
