"""Tests of learning from few labels: shares, seeds and their spread, and the frozen variant against scikit-learn."""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.results.result import Result
from excb.transfer.compare import compare
from excb.transfer.data.splits import stratified_split
from excb.transfer.finetuning import protocol, training
from excb.transfer.finetuning.protocol import SETTINGS, evaluate, interval_of_mean
from excb.transfer.reporting import report
from excb.transfer.reporting.predictions import Predictions
from excb.transfer.task import Task
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import changed, features_by_loop, write_folder

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = replace(SETTINGS[10], epochs=2, batch=7, backbone_lr=0.01)


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


def quiet(task: Task, **options: Any) -> tuple[Result, Predictions]:
    return evaluate(task, Reporter(quiet=True), table=False, **options)


def test_the_papers_settings() -> None:
    """50 epochs, batch 512, backbone and head lr 8e-5 and 1.0 for 1 %, 3e-4 and 0.2 for 10 %."""
    for percent, rates in ((1, (8e-5, 1.0)), (10, (3e-4, 0.2))):
        settings = SETTINGS[percent]
        assert (settings.backbone_lr, settings.head_lr, settings.epochs, settings.batch) == (*rates, 50, 512)
        assert {"optimizer", "schedule", "weight_decay"} <= set(settings.to_dict()["assumed"])


# ---------------------------------------------------------------------------------------------------------------------
# Which images
# ---------------------------------------------------------------------------------------------------------------------


def test_images_and_settings_of_the_run(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[int], training.Settings]] = []

    def pretend(_task: Task, chosen: np.ndarray, settings: training.Settings, **_: Any) -> torch.Tensor:
        asked.append((chosen.tolist(), settings))
        return torch.zeros(len(task.test), 5, dtype=torch.int64)

    monkeypatch.setattr(training, "run", pretend)
    assert task.train.labels is not None
    tenth = stratified_split(task.train.labels, 0.1, 0).tolist()
    result, _ = quiet(task, percent=10)
    quiet(task, percent=1, split=np.array([3, 41]))
    evaluate(task, Reporter(quiet=True), table=False)
    whole = replace(QUICK, batch=4)
    evaluate(task, Reporter(quiet=True), fraction=0.5, settings=whole, table=False)
    assert asked[0] == (tenth, replace(SETTINGS[10], batch=7))
    assert asked[1] == ([3, 41], replace(SETTINGS[1], batch=2))
    assert asked[2] == (list(range(70)), replace(SETTINGS[10], batch=70))
    assert (len(asked[3][0]), asked[3][1]) == (35, whole)
    assert result.settings["share"]["images"] == 7
    assert result.settings["share"]["source"] == "stratified, seed 0"
    assert "the share has 7 images, less than a batch of 512" in result.notes[0]


def test_missing_classes_are_told(task: Task) -> None:
    result, _ = quiet(task, percent=1, split=np.array([0, 10, 12]), settings=replace(QUICK, epochs=1))
    assert result.notes[0] == "5 of 7 classes have no image in the share, so none of theirs is found"


def test_imagenet_is_known_by_its_folders(task: Task) -> None:
    folders = tuple(f"n{number:08}" for number in range(1000))
    assert protocol.is_imagenet(changed(task.train, classes=folders))
    assert not protocol.is_imagenet(changed(task.train, classes=folders[:100]))
    assert not protocol.is_imagenet(changed(task.train, classes=tuple(map(str, range(1000)))))
    assert not protocol.is_imagenet(task.train)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"percent": 5}, "knows 1 and 10"),
        ({"percent": 1, "seeds": ()}, "at least one seed"),
        ({"percent": 1, "seeds": (1, 1)}, "none twice"),
        ({"percent": 1, "split": np.array([], dtype=int)}, "names no train image"),
        ({"percent": 10, "frozen": True, "seeds": (0, 1)}, "one seed"),
        ({"percent": 10, "frozen": True, "split": np.array([0, 1, 2])}, "one class only"),
    ],
)
def test_mistakes(task: Task, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        quiet(task, **options)


# ---------------------------------------------------------------------------------------------------------------------
# Figures
# ---------------------------------------------------------------------------------------------------------------------


def accuracy(predictions: Predictions, template: str, within: int) -> float:
    """In percent, image by image."""
    rows = zip(predictions.values[template].tolist(), predictions.targets.tolist(), strict=True)
    return 100 * statistics.fmean(target in guesses[:within] for guesses, target in rows)


def test_one_seed(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, predictions = evaluate(task, Reporter(quiet=True), percent=10, settings=QUICK)
    assert list(predictions.values) == ["semisup_10pct_{}"]
    assert result.protocol == "semisup"
    for within in (1, 5):
        expected = accuracy(predictions, "semisup_10pct_{}", within)
        assert result.figures[f"semisup_10pct_top{within}"] == pytest.approx(expected, abs=1e-4)
    assert len(result.figures) == 2
    assert capsys.readouterr().out.splitlines()[2].split()[1] == f"{result.figures['semisup_10pct_top1']:.2f}"
    assert report.write(result, predictions, tmp_path / "semisup.json")[0].is_file()
    assert Result.from_json((tmp_path / "semisup.json").read_text()).figures == result.figures


def test_seeds_are_averaged(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"settings": QUICK, "split": np.arange(0, 70, 2), "state": tmp_path}
    result, predictions = evaluate(task, Reporter(quiet=True), percent=1, seeds=(4, 0, 2), **options)
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
    file = report.write(result, predictions, tmp_path / "written" / "semisup.json")[0]
    figures = compare(file, file, Reporter(quiet=True), table=False)["figures"]
    assert figures["semisup_1pct_top1"]["first"] == pytest.approx(result.figures["semisup_1pct_top1"], abs=1e-3)
    assert torch.equal(predictions.values["semisup_1pct_{}"], predictions.values["semisup_1pct_{}_seed4"])
    assert result.settings["seeds"] == [4, 0, 2]
    assert any("means of 3 seeds" in note for note in result.notes)
    assert len({tuple(ranked.flatten().tolist()) for ranked in predictions.values.values()}) > 1  # seeds differ
    shown = [line.rsplit(maxsplit=2)[0].strip() for line in capsys.readouterr().out.splitlines()[2:]]
    assert shown == ["4", "0", "2", "mean", "standard deviation", "least", "most"]
    assert sorted(file.name for file in tmp_path.glob("*.pt")) == [f"semisup_1pct-seed{seed}.pt" for seed in (0, 2, 4)]
    # The protocol is the same whatever came out.
    json.dumps(result.settings)
    alone, _ = quiet(task, percent=1, seeds=(0,), **options)
    assert alone.figures["semisup_1pct_top1"] == result.figures["semisup_1pct_top1_seed0"]


def test_any_share(task: Task) -> None:
    result, predictions = evaluate(
        task, Reporter(quiet=True), fraction=0.3, settings=replace(QUICK, epochs=1), table=False
    )
    assert result.protocol == "finetune"
    assert list(result.figures) == ["finetune_top1", "finetune_top5"]
    assert result.settings["share"]["images"] == 21
    assert list(predictions.values) == ["finetune_{}"]


def test_interval_of_the_mean_is_that_of_resampled_images() -> None:
    hits = torch.rand(3, 60, generator=torch.Generator().manual_seed(0)) < torch.linspace(0.05, 0.95, 60)
    random, means = np.random.default_rng(0), []
    for _ in range(20_000):
        drawn = random.integers(60, size=60)
        means.append(100 * float(hits.numpy()[:, drawn].mean()))
    assert interval_of_mean(hits) == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=1.2)


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


def test_frozen_is_logistic_regression(place: Path, task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = np.setdiff1d(np.arange(70), np.arange(1, 70, 10))
    result, predictions = evaluate(task, Reporter(quiet=True), percent=10, split=chosen, frozen=True)
    assert list(result.figures) == ["semisup_10pct_frozen_top1", "semisup_10pct_frozen_top5"]
    strength = next(float(note.split()[2].rstrip(",")) for note in result.notes if note.startswith("C = "))
    assert strength in protocol.GRID
    scores = by_scikit_learn(place, chosen, strength)
    best = np.argsort(-scores, axis=1)
    agree = (predictions.values["semisup_10pct_frozen_{}"][:, 0].numpy() == best[:, 0]).mean()
    assert agree > 0.95  # float32 features, another number of iterations
    assert "semisup_10pct_frozen: logistic regression on 63 images" in capsys.readouterr().out


def test_frozen_with_too_few_images_to_choose(place: Path, task: Task) -> None:
    chosen = np.array([0, 1, 20, 21, 40])  # three of seven classes
    result, predictions = quiet(task, percent=1, split=chosen, frozen=True)
    assert predictions.values["semisup_1pct_frozen_{}"].shape == (21, 3)
    assert set(predictions.values["semisup_1pct_frozen_{}"].flatten().tolist()) == {0, 2, 4}
    assert result.notes[-1] == "C = 1, not chosen: a class has fewer than 3 images in the share"
