"""Tests of the retrieval protocol: figures against scikit-learn and a loop, files, comparison, the leaderboard."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from excb.transfer.compare import compare_results
from excb.transfer.leaderboard.submission import check_result
from excb.transfer.protocols import kind_of
from excb.transfer.reporting.predictions import ImageScores
from excb.transfer.reporting.report import scored_beside
from excb.transfer.retrieval.options import RetrievalOptions
from excb.transfer.retrieval.protocol import measure
from excb.transfer.task import Task
from tests.forked import launch
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import features_by_loop, write_folder

pytestmark = pytest.mark.usefixtures("one_thread")
QUIET = Reporter(quiet=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, train images of seven classes, test images of these and of one more."""
    place = tmp_path_factory.mktemp("retrieval")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_folder(place / "data" / "train", each=5, seed=1)
    write_folder(place / "data" / "test", each=3, seed=2)
    write_folder(place / "more", each=2, seed=2, classes=("ant", "bee", "yak"))
    return place


def task(place: Path, test: str = "data/test") -> Task:
    return Task.prepare(str(place / "run"), place / "data" / "train", place / test, device="cpu", batch=8, workers=0)


def figures_by_loop(place: Path, *, leave_out: bool) -> dict[str, float]:
    """Every figure from float64 similarities of all pairs; average precision by scikit-learn."""
    backbone = excb.load(place / "run")
    queries, targets = features_by_loop(backbone, place / "data" / "test")
    rows, labels = (queries, targets) if leave_out else features_by_loop(backbone, place / "data" / "train")
    rows, queries = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (rows, queries))
    scores: list[list[float]] = []
    for q, query in enumerate(queries):
        similarities = rows @ query
        kept = np.arange(len(rows)) != q if leave_out else np.ones(len(rows), bool)
        right = (np.array(labels) == targets[q])[kept]
        order = np.argsort(-similarities[kept], kind="stable")
        first = [bool(right[order[:k]].any()) for k in (1, 5, 10)]
        precision = average_precision_score(right, similarities[kept])
        scores.append([precision, right[order[: right.sum()]].mean(), *first])
    names = ("mAP", "R_precision", "recall_at_1", "recall_at_5", "recall_at_10")
    return {f"retrieval_{name}": 100 * value for name, value in zip(names, np.mean(scores, axis=0), strict=True)}


@pytest.mark.parametrize("gallery", ["train", "test"])
def test_figures_are_those_of_the_loop(place: Path, gallery: Any) -> None:
    measured = measure(task(place), RetrievalOptions(gallery=gallery), QUIET)
    result, scored = measured.result, measured.scored
    expected = figures_by_loop(place, leave_out=gallery == "test")
    assert result.figures == pytest.approx(expected, abs=1e-3)
    assert list(result.figures) == list(expected)
    assert 0 < result.figures["retrieval_mAP"] < 100
    assert result.settings["gallery"] == gallery
    assert result.notes == []
    for name, (low, high) in result.intervals.items():
        assert low <= result.figures[name] <= high
    by_class = result.per_class["retrieval_mAP"]
    ants = scored.values["retrieval_mAP"][scored.targets == 0]
    assert by_class["ant"] == pytest.approx(100 * float(ants.mean()), abs=1e-4)


def test_queries_without_an_image_of_their_class_do_not_count(place: Path) -> None:
    measured = measure(task(place, "more"), RetrievalOptions(), QUIET)
    result, scored = measured.result, measured.scored
    assert result.notes == ["no image of the same class in the gallery for 2 of 6 test images: left out"]
    scores = scored.values["retrieval_mAP"]
    assert int(scores.isnan().sum()) == 2
    assert result.figures["retrieval_mAP"] == pytest.approx(100 * float(scores.nanmean()), abs=1e-4)
    assert result.per_class["retrieval_mAP"]["yak"] is None


def test_a_gallery_without_any_relevant_image_is_refused(place: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "single", each=1, seed=3)
    single = Task.prepare(
        str(place / "run"), place / "data" / "train", tmp_path / "single", device="cpu", batch=8, workers=0
    )
    with pytest.raises(UserError, match="no test image has another of its class among the test images"):
        measure(single, RetrievalOptions(gallery="test"), QUIET)


# ---------------------------------------------------------------------------------------------------------------------
# As a command
# ---------------------------------------------------------------------------------------------------------------------


def command(place: Path, file: Path, *words: str) -> list[str]:
    usual = ["--ckpt", str(place / "run"), "--data", str(place / "data"), "--workers", "0", "--device", "cpu"]
    return ["retrieval", *usual, "--no-cache", "--quiet", "--out", str(file), *words]


def test_two_processes_give_the_answer_of_one(place: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    assert main(command(place, one, "--gallery", "test")) == 0
    assert launch("excb.transfer.cli", command(place, two, "--gallery", "test"), 2) == 0
    first, second = (ResultRecord.from_json(file.read_text(encoding="utf-8")) for file in (one, two))
    assert (first.figures, first.intervals) == (second.figures, second.intervals)
    assert first.predictions["sha256"] == second.predictions["sha256"]


def test_files_are_read_compared_and_submitted(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, student = tmp_path / "train.json", tmp_path / "student.json"
    assert main(command(place, train)) == 0
    assert main(command(place, student, "--network", "student")) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "student.json",
        "student.npz",
        "train.json",
        "train.npz",
    ]
    scored = scored_beside(ResultRecord.read(train), train)
    assert isinstance(scored, ImageScores)
    assert check_result(train, ResultRecord.read(train))[-1] == "5 figures recounted from 21 predictions"
    capsys.readouterr()
    found = compare_results(train, student, Reporter())["figures"]
    assert list(found) == ["retrieval_mAP"]
    assert found["retrieval_mAP"]["difference"] == pytest.approx(
        found["retrieval_mAP"]["second"] - found["retrieval_mAP"]["first"], abs=1e-3
    )
    assert "jackknife p" in capsys.readouterr().out
    other = compare_results(train, student, QUIET, figure="retrieval_recall_at_1", table=False)["figures"]
    assert 0 < other["retrieval_recall_at_1"]["p_value"] <= 1


def test_changed_scores_are_noticed(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    assert main(command(place, file)) == 0
    values = json.loads(file.read_text(encoding="utf-8"))
    values["figures"]["retrieval_mAP"] += 0.01
    file.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UserError, match=r"retrieval_mAP is .*, and its predictions give"):
        check_result(file, ResultRecord.read(file))


def test_the_leaderboard_shows_it(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "results" / "mine.json"
    assert main(command(place, file)) == 0
    assert main(["leaderboard", str(tmp_path / "results"), "--out", str(tmp_path / "board"), "--quiet"]) == 0
    text = (tmp_path / "board" / "leaderboard.md").read_text(encoding="utf-8")
    table = text.partition("## Retrieval of images of the same class")[2].partition("\n## ")[0]
    assert "| mAP | R-precision | recall@1 | recall@5 | recall@10 |" in table
    figures = ResultRecord.from_json(file.read_text(encoding="utf-8")).figures
    assert all(f"| {value:.2f} |" in table for value in figures.values())  # 21 images: no intervals


def test_kinds_of_figures() -> None:
    kind = kind_of("retrieval_recall_at_10")
    assert kind is not None
    assert (kind.family, kind.metric, kind.unit, kind.higher_is_better) == ("retrieval", "recall@10", "percent", True)


def test_scores_that_are_none_are_refused_when_read() -> None:
    from excb.files import npy
    from excb.transfer.reporting.predictions import unpack_predictions

    scores = {"retrieval_mAP": torch.tensor([0.5, float("nan")], dtype=torch.float64)}
    packed = ImageScores(torch.tensor([0, 1]), ["a", "b"], ("x", "y"), scores).pack()
    assert isinstance(unpack_predictions(packed), ImageScores)
    of_images: dict[str, Any] = {
        "targets": np.array([0, 1]),
        "names": np.array(["a", "b"]),
        "classes": np.array(["x", "y"]),
    }
    for wrong in (np.array([np.nan, np.nan]), np.array([0.5, np.inf])):
        file = io.BytesIO()
        np.savez_compressed(file, **of_images, m=wrong)
        with pytest.raises(npy.DAMAGE):
            unpack_predictions(file.getvalue())
