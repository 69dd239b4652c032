"""Tests of learning from few labels: shares, seeds and their spread, and the frozen variant against scikit-learn."""

import json
import re
import statistics
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import excb
from excb.checkpoint import run_checkpoint
from excb.cli import Parser
from excb.console import Reporter
from excb.errors import UserError
from excb.option_parser import add_option_fields, of_arguments
from excb.results.result import ResultRecord
from excb.transfer.compare import compare_results
from excb.transfer.data.splits import stratified_split
from excb.transfer.finetuning import logistic, protocol, training
from excb.transfer.finetuning.options import FinetuneOptions, SemisupOptions
from excb.transfer.finetuning.protocol import SETTINGS, checked, few_labels, measure, share_settings
from excb.transfer.reporting import report
from excb.transfer.reporting.predictions import Predictions
from excb.transfer.task import Task
from tests.clone import SHARED
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import changed, features_by_loop, write_folder

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK: dict[str, Any] = {"settings": "paper", "epochs": 2, "train_batch": 7, "backbone_lr": 0.01, "head_lr": 0.2}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("semisup")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=48, eval_crop=48))
    write_folder(place / "train", each=10, seed=1)
    write_folder(place / "test", each=3, seed=2)
    return place


@pytest.fixture(scope="module")
def task(place: Path) -> Task:
    return Task.prepare(str(place / "run"), place / "train", place / "test", device="cpu", batch=8, workers=0)


def options_of(**values: Any) -> SemisupOptions | FinetuneOptions:
    """Those of `semisup` where a percentage is named, else of `finetune`."""
    return SemisupOptions(**values) if "percent" in values else FinetuneOptions(**values)


def quiet(task: Task, **values: Any) -> tuple[ResultRecord, Predictions]:
    made = measure(task, options_of(**values), Reporter(quiet=True))
    return made.result, made.scored


def shown(task: Task, **values: Any) -> tuple[ResultRecord, Predictions]:
    """As `quiet`, with the table on the terminal."""
    made = measure(task, options_of(**values), Reporter(quiet=True))
    made.show(Reporter(quiet=True))
    return made.result, made.scored


def listed(task: Task, indices: Iterable[int], folder: Path) -> Path:
    """A file that names these train images."""
    file = folder / "share.txt"
    file.write_text("".join(f"{task.train.paths[index]}\n" for index in indices), encoding="utf-8")
    return file


def test_the_papers_settings() -> None:
    """50 epochs, batch 512, backbone and head lr 8e-5 and 1.0 for 1 %, 3e-4 and 0.2 for 10 %."""
    for percent, rates in ((1, (8e-5, 1.0)), (10, (3e-4, 0.2))):
        settings = SETTINGS[percent]
        assert (settings.backbone_lr, settings.head_lr, settings.epochs, settings.batch) == (*rates, 50, 512)
        assert {"optimizer", "schedule", "weight_decay"} <= set(settings.to_dict()["assumed"])


# ---------------------------------------------------------------------------------------------------------------------
# Which images
# ---------------------------------------------------------------------------------------------------------------------


def test_images_and_settings_of_the_run(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[int], training.Settings]] = []

    def pretend(_task: Task, chosen: np.ndarray, settings: training.Settings, **_: Any) -> torch.Tensor:
        asked.append((chosen.tolist(), settings))
        return torch.zeros(len(task.test), 5, dtype=torch.int64)

    monkeypatch.setattr(training, "finetune", pretend)
    assert task.train.labels is not None
    tenth = stratified_split(task.train.labels, 0.1, 0).tolist()
    result, _ = quiet(task, percent=10, settings="paper")
    quiet(task, percent=1, split_file=listed(task, (3, 41), tmp_path))
    quiet(task)
    quiet(task, fraction=0.5, **QUICK | {"train_batch": 4})
    whole = replace(SETTINGS[10], epochs=2, batch=4, backbone_lr=0.01)
    assert asked[0] == (tenth, replace(SETTINGS[10], batch=7))
    assert asked[1] == ([3, 41], few_labels(2))
    assert asked[2] == (list(range(70)), few_labels(70))
    assert (len(asked[3][0]), asked[3][1]) == (35, whole)
    assert result.settings["share"]["images"] == 7
    assert result.settings["share"]["source"] == "stratified, seed 0"
    assert "the share has 7 images, less than a batch of 512" in result.notes[0]
    assert result.notes[1].startswith(
        "settings of the paper's protocol: batch 7, learning rate 0.0003 for the backbone and 0.2 for"
    )


def test_few_labels_take_as_many_steps_as_the_paper_does_on_its_smaller_share() -> None:
    for images, batch in ((2, 2), (300, 16), (2_640, 106), (5_119, 205)):
        settings = share_settings(images, percent=10, published=False)
        assert (settings, settings.batch, settings.start) == (few_labels(images), batch, "frozen")
        steps = settings.epochs * -(-images // settings.batch)
        assert images <= 16 or 0.7 * 50 * 25 < steps < 1.1 * 50 * 25  # 12,811 images in batches of 512
    assert share_settings(5_120, percent=10, published=False) == SETTINGS[10]
    assert share_settings(12_811, percent=1, published=True) == SETTINGS[1]
    assert share_settings(2_000, percent=1, published=True) == SETTINGS[1]  # a part of ImageNet
    assert share_settings(300, percent=None, published=False, choice="paper") == SETTINGS[10]
    assert share_settings(99_999, percent=None, published=False, choice="few-labels") == few_labels(99_999)


@pytest.mark.parametrize(
    ("words", "start", "rate"),
    [
        ([], "frozen", 1e-3),
        (["--epochs", "3", "--train-batch", "9"], "frozen", 1e-3),
        (["--settings", "paper"], "random", 3e-4),
        (["--backbone-lr", "0.5"], "random", 0.5),  # a rate that was found with a random head
        (["--backbone-lr", "0.5", "--settings", "few-labels"], "frozen", 0.5),
    ],
)
def test_settings_of_a_command_line(task: Task, words: list[str], start: str, rate: float) -> None:
    parser = Parser()
    add_option_fields(parser, SemisupOptions)
    options = of_arguments(SemisupOptions, parser.parse_args(["--percent", "10", *words]))
    settings = checked(task, options).settings
    assert settings is not None
    assert (settings.start, settings.backbone_lr) == (start, rate)
    assert (settings.epochs, settings.batch)[0] == (3 if "--epochs" in words else 50)


@pytest.mark.parametrize("names", [("ant", "bee"), ("ant", "bee", "cat")])
def test_few_labels_start_from_frozen_features(task: Task, names: tuple[str, ...], tmp_path: Path) -> None:
    """With learning rates of 0, fine-tuning is the logistic regression on frozen features."""
    assert task.train.classes is not None
    assert task.train.labels is not None
    chosen = np.flatnonzero(np.isin(task.train.labels, [task.train.classes.index(name) for name in names]))
    share = listed(task, chosen, tmp_path)
    frozen, guesses = quiet(task, percent=10, split_file=share, frozen=True)
    still: dict[str, Any] = {"settings": "few-labels", "epochs": 1, "backbone_lr": 0.0, "head_lr": 0.0}
    result, same = quiet(task, percent=10, split_file=share, **still)
    found, expected = same.values["semisup_10pct_{}"], guesses.values["semisup_10pct_frozen_{}"]
    assert found[:, : len(names)].tolist() == expected.tolist()
    assert result.figures["semisup_10pct_top1"] == frozen.figures["semisup_10pct_frozen_top1"]
    assert result.settings["recipe"] == "few labels"
    assert result.settings["head"] == "logistic regression on frozen features"
    assert "head_solver" in result.settings  # so that results of the earlier solver are not compared as if equal
    assert any(note.startswith("settings for few labels (") for note in result.notes)
    assert "recipe" not in SETTINGS[10].to_dict()  # results of earlier versions have the same protocol


def test_few_labels_learn_and_keep_batchnorms_statistics(task: Task, tmp_path: Path) -> None:
    result, _ = quiet(task, epochs=2, state=tmp_path)
    state = run_checkpoint.read_run_checkpoint(tmp_path / "finetune-seed0.pt")["model"]
    before = task.backbone.state_dict()
    for name, value in before.items():
        kept = torch.equal(state[f"backbone.{name}"], value)
        assert kept == ("running" in name or "num_batches" in name), name
    assert result.figures["finetune_top5"] > 0


def test_a_figure_below_the_most_frequent_class_is_told(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_task: Task, *_: Any, **__: Any) -> torch.Tensor:
        assert task.test.labels is not None
        return (torch.from_numpy(task.test.labels)[:, None] + 1) % 7

    monkeypatch.setattr(training, "finetune", wrong)
    result, _ = quiet(task, **QUICK)
    expected = "finetune_top1 of 0.00 % is below the 14.29 % of always guessing the most frequent class"
    assert any(note.startswith(expected) for note in result.notes)


def test_missing_classes_are_told(task: Task, tmp_path: Path) -> None:
    result, _ = quiet(task, percent=1, split_file=listed(task, (0, 10, 12), tmp_path), **QUICK | {"epochs": 1})
    assert result.notes[0] == "no image in the share for 5 of 7 classes: none of theirs is found"


@pytest.mark.parametrize("frozen", [False, True])
def test_one_image_of_every_class_may_be_more_than_the_share_asked_for(task: Task, frozen: bool) -> None:
    result, _ = quiet(task, percent=1, frozen=frozen, **{} if frozen else QUICK | {"epochs": 1})
    images = len(task.train)
    told = f"the share has 7 images, one of every class: 1 % of {images} is {round(images / 100)}"
    assert result.notes[0] == told
    enough, _ = quiet(task, percent=10, frozen=True)
    assert result.settings["share"]["images"] == 7
    assert not any("one of every class" in note for note in enough.notes)


def test_imagenet_is_known_by_its_folders(task: Task) -> None:
    folders = tuple(f"n{number:08}" for number in range(1000))
    assert protocol.has_imagenet_folders(changed(task.train, classes=folders))
    assert not protocol.has_imagenet_folders(changed(task.train, classes=folders[:100]))
    assert not protocol.has_imagenet_folders(changed(task.train, classes=tuple(map(str, range(1000)))))
    assert not protocol.has_imagenet_folders(task.train)


@pytest.mark.parametrize(
    ("options", "share", "words"),
    [
        ({"percent": 1, "seeds": ()}, None, "at least one seed"),
        ({"percent": 1, "seeds": (1, 1)}, None, "none twice"),
        ({"percent": 10, "frozen": True, "seeds": (0, 1)}, None, "one seed"),
        ({"percent": 10, "frozen": True, "precision": "bf16"}, None, "which has no --precision: leave it out"),
        ({"percent": 10, "frozen": True, "state": Path("unfinished")}, None, "which has no --state: leave it out"),
        ({"percent": 10, "frozen": True}, (0, 1, 2), "are of one class: take a larger share"),
        ({}, (0, 1, 2), "are of one class: take a larger share"),
        ({"fraction": 0.5}, (0, 1, 2), "so --fraction has no use"),
        ({"epochs": 0}, None, "at least 1"),
    ],
)
def test_mistakes(
    task: Task, tmp_path: Path, options: dict[str, Any], share: tuple[int, ...] | None, words: str
) -> None:
    file = None if share is None else listed(task, share, tmp_path)
    with pytest.raises(UserError, match=words):
        quiet(task, **options, split_file=file)


@pytest.mark.parametrize("options", [{"percent": 10, "settings": "paper"}, {"backbone_lr": 0.01}])
def test_precision_of_features_is_refused_where_no_features_are_frozen(task: Task, options: dict[str, Any]) -> None:
    half = replace(task, precision="bf16")
    with pytest.raises(UserError, match="--feature-precision bf16 is of frozen features"):
        checked(half, options_of(**options))
    for other in ({"percent": 10, "frozen": True}, {"percent": 10}):  # few labels start from frozen features
        checked(half, options_of(**other))


# ---------------------------------------------------------------------------------------------------------------------
# Figures
# ---------------------------------------------------------------------------------------------------------------------


def accuracy(predictions: Predictions, template: str, within: int) -> float:
    """In percent, image by image."""
    rows = zip(predictions.values[template].tolist(), predictions.targets.tolist(), strict=True)
    return 100 * statistics.fmean(target in guesses[:within] for guesses, target in rows)


def test_one_seed(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, predictions = shown(task, percent=10, **QUICK)
    assert list(predictions.values) == ["semisup_10pct_{}"]
    assert result.protocol == "semisup"
    for within in (1, 5):
        expected = accuracy(predictions, "semisup_10pct_{}", within)
        assert result.figures[f"semisup_10pct_top{within}"] == pytest.approx(expected, abs=1e-4)
    assert len(result.figures) == 2
    cells = re.split(r"\s{2,}", capsys.readouterr().out.splitlines()[2].strip())
    assert cells[2] == "{:.1f} to {:.1f}".format(*result.intervals["semisup_10pct_top1"])
    assert cells[1] == f"{result.figures['semisup_10pct_top1']:.2f}"
    assert report.write_result(result, predictions, tmp_path / "semisup.json")[0].is_file()
    assert ResultRecord.from_json((tmp_path / "semisup.json").read_text()).figures == result.figures


def test_seeds_are_averaged(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = QUICK | {"split_file": listed(task, range(0, 70, 2), tmp_path), "state": tmp_path}
    result, predictions = shown(task, percent=1, seeds=(4, 0, 2), **options)
    for within in (1, 5):
        name = f"semisup_1pct_top{within}"
        each = [accuracy(predictions, f"semisup_1pct_{{}}_seed{seed}", within) for seed in (4, 0, 2)]
        assert [result.figures[f"{name}_seed{seed}"] for seed in (4, 0, 2)] == pytest.approx(each, abs=1e-4)
        assert result.figures[name] == pytest.approx(np.mean(each), abs=1e-3)
        assert result.figures[f"{name}_sd"] == pytest.approx(np.std(each, ddof=1), abs=1e-3)
        low, high = result.intervals[name]
        assert low <= result.figures[name] <= high
    by_class = [result.per_class[f"semisup_1pct_top1{seed}"] for seed in ("", "_seed4", "_seed0", "_seed2")]
    for name, value in by_class[0].items():
        assert value == pytest.approx(np.mean([each[name] for each in by_class[1:]]), abs=1e-3)
    file = report.write_result(result, predictions, tmp_path / "written" / "semisup.json")[0]
    figures = compare_results(file, file, Reporter(quiet=True), table=False)["figures"]
    assert figures["semisup_1pct_top1"]["first"] == pytest.approx(result.figures["semisup_1pct_top1"], abs=1e-3)
    assert torch.equal(predictions.values["semisup_1pct_{}"], predictions.values["semisup_1pct_{}_seed4"])
    assert result.settings["seeds"] == [4, 0, 2]
    assert any("means of 3 seeds" in note for note in result.notes)
    assert len({tuple(ranked.flatten().tolist()) for ranked in predictions.values.values()}) > 1  # seeds differ
    rows = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()[2:]]
    assert [cells[0] for cells in rows] == ["4", "0", "2", "mean", "standard deviation", "least", "most"]
    low, high = result.intervals["semisup_1pct_top1"]
    assert rows[3][2] == f"{low:.1f} to {high:.1f}"
    assert [len(cells) for cells in rows] == [3, 3, 3, 4, 3, 3, 3]
    assert sorted(file.name for file in tmp_path.glob("*.pt")) == [f"semisup_1pct-seed{seed}.pt" for seed in (0, 2, 4)]
    # The protocol is the same whatever came out.
    json.dumps(result.settings)
    alone, _ = quiet(task, percent=1, seeds=(0,), **options)
    assert alone.figures["semisup_1pct_top1"] == result.figures["semisup_1pct_top1_seed0"]


def test_any_share(task: Task) -> None:
    result, predictions = quiet(task, fraction=0.3, **QUICK | {"epochs": 1})
    assert result.protocol == "finetune"
    assert list(result.figures) == ["finetune_top1", "finetune_top5"]
    assert result.settings["share"]["images"] == 21
    assert list(predictions.values) == ["finetune_{}"]


# ---------------------------------------------------------------------------------------------------------------------
# Frozen
# ---------------------------------------------------------------------------------------------------------------------


def by_scikit_learn(place: Path, chosen: np.ndarray, strength: float) -> np.ndarray:
    """Probabilities [Q, C] of the test images."""
    from sklearn.linear_model import LogisticRegression

    backbone = excb.load(place / "run")
    (rows, names), (queries, _) = (features_by_loop(backbone, place / part) for part in ("train", "test"))
    rows, names = rows[chosen], [names[index] for index in chosen]
    mean, deviation = rows.mean(0), np.maximum(rows.std(0), 1e-6)  # some features are constant
    model = LogisticRegression(C=strength, max_iter=5000).fit((rows - mean) / deviation, names)
    return np.asarray(model.predict_proba((queries - mean) / deviation))


def test_frozen_is_logistic_regression(
    place: Path, task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = np.setdiff1d(np.arange(70), np.arange(1, 70, 10))
    result, predictions = shown(task, percent=10, split_file=listed(task, chosen, tmp_path), frozen=True)
    assert list(result.figures) == ["semisup_10pct_frozen_top1", "semisup_10pct_frozen_top5"]
    strength = next(float(note.split()[2].rstrip(",")) for note in result.notes if note.startswith("C = "))
    assert strength in logistic.GRID
    scores = by_scikit_learn(place, chosen, strength)
    best = np.argsort(-scores, axis=1)
    agree = (predictions.values["semisup_10pct_frozen_{}"][:, 0].numpy() == best[:, 0]).mean()
    assert agree > 0.95  # float32 features, another number of iterations
    assert "semisup_10pct_frozen: logistic regression on 63 images" in capsys.readouterr().out


def test_frozen_with_too_few_images_to_choose(task: Task, tmp_path: Path) -> None:
    share = listed(task, (0, 1, 20, 21, 40), tmp_path)  # three of seven classes
    result, predictions = quiet(task, percent=1, split_file=share, frozen=True)
    assert predictions.values["semisup_1pct_frozen_{}"].shape == (21, 3)
    assert set(predictions.values["semisup_1pct_frozen_{}"].flatten().tolist()) == {0, 2, 4}
    assert result.notes[-1] == "C = 1, not chosen: a class has fewer than 3 images in the share"


# ---------------------------------------------------------------------------------------------------------------------
# On real photographs
# ---------------------------------------------------------------------------------------------------------------------

GROCERY = SHARED / "data" / "grocery128"


@pytest.mark.slow
@pytest.mark.skipif(not GROCERY.is_dir(), reason="grocery128: only beside a developer's clone")
def test_three_hundred_photographs_are_not_below_frozen_features(tmp_path: Path) -> None:
    task = Task.prepare(
        "tiny_grocery", GROCERY / "train", GROCERY / "test", resize=56, crop=56, device="cpu", workers=1
    )
    assert task.train.labels is not None
    share = listed(task, stratified_split(task.train.labels, 300 / len(task.train), 0), tmp_path)
    frozen, _ = quiet(task, percent=10, split_file=share, frozen=True)
    tuned, _ = quiet(task, percent=10, split_file=share)
    assert tuned.settings["recipe"] == "few labels"
    assert tuned.figures["semisup_10pct_top1"] > frozen.intervals["semisup_10pct_frozen_top1"][0]
