"""Tests of `excb-eval all`: what applies, nothing made twice, changes noticed, one report page."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.files.atomic import write_text
from excb.transfer.cli import main
from excb.transfer.compare import compare_results
from excb.transfer.detection import record as detection
from excb.transfer.detection.options import DetectionInSuite, DetectionOptions
from excb.transfer.every import cli as suite_cli
from excb.transfer.every import suite
from excb.transfer.every.page import render_report
from excb.transfer.every.suite import PlannedStep, StepOutcome
from excb.transfer.protocols import PROTOCOLS
from excb.transfer.runner import of_python
from tests.browser import chromium
from tests.run_files import tiny_recipe, write_run
from tests.transfer.dense.masked_images import write_set
from tests.transfer.labelled_images import write_folder
from tests.transfer.result_files import HOSTILE, result

pytestmark = pytest.mark.usefixtures("one_thread")
QUIET = Reporter(quiet=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("suite")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_folder(place / "data" / "train", each=4, seed=1)
    write_folder(place / "data" / "test", each=2, seed=2)
    return place


def evaluate(place: Path, *words: str) -> int:
    usual = ["--ckpt", str(place / "run"), "--data", str(place / "data"), "--cache", str(place / "cache")]
    return int(main(["all", *usual, "--workers", "0", "--device", "cpu", *words]))


def test_all_that_applies_once_from_shared_features(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = place / "out"
    words = ("--out", str(out), "--only", "knn", "linear", "semisup_1", "--json")
    assert evaluate(place, *words) == 0
    told, err = capsys.readouterr()
    first = json.loads(told)
    assert set(first["results"]) == {"knn", "linear"}
    assert first["skipped"] == {"semisup_1": "1 % of 28 train images are 0, fewer than 7 classes"}
    assert err.count("rows from") == 2  # the second protocol computes no feature
    assert sorted(file.name for file in out.glob("*.json")) == ["all.json", "knn.json", "linear.json"]
    page = (out / "report.html").read_text(encoding="utf-8")
    for kind in first["results"].values():
        assert all(f"{value:.2f}" in page for value in kind["figures"].values())
    assert page.count("data:image/png;base64,") == 2

    before = {file: file.stat().st_mtime_ns for file in out.glob("*.json")}
    assert evaluate(place, *words) == 0
    told, err = capsys.readouterr()
    assert json.loads(told) == first
    assert err.count("finished before") == 2
    assert {file: file.stat().st_mtime_ns for file in out.glob("*.json")} == before

    image = next((place / "data" / "test").rglob("*.png"))
    os.utime(image, ns=(1, 1))
    assert evaluate(place, "--out", str(out), "--only", "knn", "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan == [{"name": "knn", "command": ["excb-eval", "knn"], "state": "run", "why": "the test images changed"}]


def test_references_are_measured_where_a_protocol_takes_them(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = place / "beside"
    words = ("--out", str(out), "--only", "knn", "semisup_10", "--json")
    write_folder(place / "more" / "train", each=20, seed=1)
    write_folder(place / "more" / "test", each=2, seed=2)
    more = ("--data", str(place / "more"))

    def states(*options: str) -> dict[str, str]:
        assert evaluate(place, *words, *more, *options, "--dry-run") == 0
        return {one["name"]: one["state"] for one in json.loads(capsys.readouterr().out)["plan"]}

    assert evaluate(place, *words, *more) == 0
    capsys.readouterr()
    assert states() == {"knn": "finished", "semisup_10": "finished"}
    assert states("--histogram") == {"knn": "run", "semisup_10": "finished"}  # fine-tuning has no such reference
    assert states("--untrained") == {"knn": "run", "semisup_10": "run"}
    assert evaluate(place, *words, *more, "--histogram", "--pixels", "--patches") == 0
    found = json.loads(capsys.readouterr().out)["results"]
    assert {"colour_histogram", "pixels", "patches"} <= set(found["knn"]["references"])
    assert "raw pixels" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name the folder for results and report with --out DIR"),
        (("--out", "{place}/run/checkpoints/step-5.pt"), "is a file: name a folder"),
        (("--dry-run", "--linear", "fats"), "no linear protocol is called 'fats'; did you mean 'fast'?"),
        (("--dry-run", "--seeds", "0", "0"), "--seeds: name at least one seed, and none twice"),
        (("--dry-run", "--seeds", "-1", "2"), "--seeds -1: seeds are 0 or more"),
        (("--dry-run", "--schedule", "3x"), "no schedule is named '3x'"),
        (("--out", "{place}/x", "--only", "knm"), "--only knm: no such protocol; did you mean 'knn'? (there are knn, "),
        (("--out", "{place}/x", "--only", "detection"), "nothing to evaluate: detection does not apply (it takes a "),
    ],
)
def test_mistakes_are_one_line(
    place: Path, words: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(place, *(word.format(place=place) for word in words)) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


# ---------------------------------------------------------------------------------------------------------------------
# Without evaluations
# ---------------------------------------------------------------------------------------------------------------------


class Runner:
    """Writes a result for any protocol but those that fail."""

    def __init__(self, *failing: str) -> None:
        self.failing, self.made = failing, list[str]()

    def __call__(self, _step: PlannedStep, file: Path) -> list[Path]:
        self.made.append(file.stem)
        if file.stem in self.failing:
            raise UserError(f"no {file.stem} today")
        write_text(result({"knn_top1_k20": 50.0}, name=HOSTILE).to_json() + "\n", file)
        return [file]


def two_steps(**depends_on: Any) -> list[PlannedStep]:
    return [PlannedStep(name, name, [name], depends_on={"weights": "a"} | depends_on) for name in ("semisup", "knn")]


def test_what_fails_does_not_stop_the_others_and_is_tried_again(tmp_path: Path) -> None:
    first, second = Runner("semisup"), Runner()
    outcomes = suite.run_suite(two_steps(), tmp_path, first, QUIET)
    assert [(one.failed, one.result is not None) for one in outcomes] == [("no semisup today", False), ("", True)]
    outcomes = suite.run_suite(two_steps(), tmp_path, second, QUIET)
    assert (first.made, second.made) == (["semisup", "knn"], ["semisup"])
    assert [one.before for one in outcomes] == [False, True]


def test_figures_without_an_interval_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = replace(result({"bbox_AP": 31.25}, protocol="detection"), intervals={})
    outcomes = [StepOutcome(PlannedStep("detection", "Detection", []), tmp_path / "detection.json", found)]
    suite_cli.write_report(outcomes, tmp_path, QUIET, as_json=False)
    assert "bbox_AP    31.25" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"weights": "b"}, "the checkpoint changed"),
        ({"train": ["x", "y"]}, "the train images changed"),
        ({"preprocessing": {"crop": 1}}, "the preprocessing changed"),
    ],
)
def test_a_change_is_noticed(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    suite.run_suite(two_steps(), tmp_path, Runner(), QUIET)
    again = Runner()
    changed = two_steps(**change)
    assert [suite.finished(step, tmp_path) for step in changed] == [(False, why)] * 2
    assert state_of(changed[0], tmp_path) != state_of(two_steps()[0], tmp_path)
    suite.run_suite(changed, tmp_path, again, QUIET)
    assert again.made == ["semisup", "knn"]


def state_of(step: PlannedStep, folder: Path) -> Path:
    """Where a step keeps its unfinished trainings."""
    evaluation = of_python(PROTOCOLS["semisup"], {"ckpt": "x", "percent": 1})
    kept = suite.with_state(replace(step, evaluation=evaluation), folder).evaluation
    assert kept is not None
    state: Path = kept.own.state
    assert state.parent == folder / "state"
    return state


def test_a_frozen_head_keeps_no_state(tmp_path: Path) -> None:
    evaluation = of_python(PROTOCOLS["semisup"], {"ckpt": "x", "percent": 1, "frozen": True})
    step = replace(two_steps()[0], evaluation=evaluation)
    assert suite.with_state(step, tmp_path) is step


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        (["linear", "--protocol", "fast"], ["linear"], False),  # the default now depends on the number of labels
        (["knn", "--temperature", "0.07"], ["knn"], True),
        (["semisup", "--percent", "1", "--seeds", "0"], ["semisup", "--percent", "1"], True),
        (["semisup", "--percent", "1", "--seeds", "1"], ["semisup", "--percent", "1"], False),
        (["linear", "--protocol", "logreg"], ["linear"], False),
        (["detection", "--data", "D", "--schedule", "1x"], ["detection", "--data", "D"], True),
        (["knn", "--gone", "1"], ["knn"], False),
        (["sets", "--only", "x"], ["sets", "--only", "y"], False),
    ],
)
def test_folders_of_earlier_versions_go_on(before: list[str], now: list[str], same: bool, tmp_path: Path) -> None:
    """They wrote every option of a step, also those that are the default."""
    step = PlannedStep("one", "One", before, {"weights": "a"})
    suite.run_suite([step], tmp_path, Runner(), QUIET)
    assert suite.finished(replace(step, words=now), tmp_path) == (same, "" if same else "its settings changed")


def test_other_settings_and_changed_files_are_noticed(tmp_path: Path) -> None:
    (step, *_) = two_steps()
    suite.run_suite([step], tmp_path, Runner(), QUIET)
    assert suite.finished(replace(step, words=["semisup", "--percent", "1", "--seeds", "1"]), tmp_path) == (
        False,
        "its settings changed",
    )
    (tmp_path / "semisup.json").write_text("{}", encoding="utf-8")
    assert suite.finished(step, tmp_path) == (False, f"{tmp_path / 'semisup.json'} is gone or changed")


@pytest.mark.parametrize(
    ("network", "coco", "skipped"),
    [
        ("vit_small", Path("D"), "it takes a resnet50 or resnet101 or resnet152, not a vit_small"),
        ("resnet50", None, "name images for it with --coco DIR"),
        ("resnet50", Path("D"), ""),
    ],
)
def test_detection_where_images_and_network_fit(
    network: str, coco: Path | None, skipped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection, "_fingerprints", lambda _folder: {"train": "f"})
    task: Any = SimpleNamespace(
        backbone=SimpleNamespace(entry=SimpleNamespace(architecture=SimpleNamespace(name=network)))
    )
    assert detection.DETECTION.in_suite is not None
    depends_on = {"weights": "w", "network": "teacher", "version": "1", "train": "not of detection"}
    (step,) = detection.DETECTION.in_suite.steps(task, DetectionInSuite(coco=coco), depends_on)
    assert step.skipped == skipped
    if not skipped:
        assert step.options == DetectionOptions(data=Path("D"))
        assert step.depends_on == {"weights": "w", "network": "teacher", "version": "1", "images": {"train": "f"}}


def test_the_report_shows_any_name_as_text(tmp_path: Path) -> None:
    page = render_report(suite.run_suite(two_steps(), tmp_path, Runner("semisup"), QUIET))
    assert "<img src=x" not in page
    assert "&lt;/script&gt;&lt;img src=x" in page
    assert "no semisup today" in page
    assert "<script" not in page


def test_headline_confusions_and_classes_are_of_the_same_k(tmp_path: Path) -> None:
    per_class: dict[str, dict[str, float | None]] = {
        f"knn_top1_k{k}": {"ant": 10.0 + k, "bee": 20.0 + k} for k in (10, 20)
    }
    found = replace(result({"knn_top1_k10": 41.0, "knn_top1_k20": 42.0}, name="net"), per_class=per_class)
    page = render_report([StepOutcome(PlannedStep("knn", "k-NN", ["knn"]), tmp_path / "knn.json", found)])
    assert "<dt>k-NN top-1, k 20</dt><dd>42.00" in page
    assert "Best classes, k-NN top-1, k 20" in page
    assert ">40.0<" in page
    assert ">30.0<" in page
    assert ">20.0<" not in page


@pytest.mark.browser
def test_the_report_in_a_browser_fits_a_phone_and_runs_nothing(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(render_report(suite.run_suite(two_steps(), tmp_path, Runner("semisup"), QUIET)), encoding="utf-8")
    with chromium() as page:
        page.size(360, 740, phone=True)
        page.open(file)
        assert page.run("document.documentElement.scrollWidth") <= 360
        assert page.run("document.querySelector('h1').textContent").endswith("gnp.|*`")
        assert page.run("document.scripts.length === 0 && window.hurt === undefined")
        assert page.problems == []


# ---------------------------------------------------------------------------------------------------------------------
# Several checkpoints
# ---------------------------------------------------------------------------------------------------------------------


def compare(place: Path, *words: str, checkpoints: Sequence[str] = ("{place}/run", "{place}/other")) -> int:
    named = [each.format(place=place) for each in checkpoints]
    usual = ["--ckpt", *named, "--data", str(place / "data"), "--cache", str(place / "cache"), "--workers", "0"]
    return int(main(["all", *usual, "--device", "cpu", "--only", "knn", "retrieval", *words]))


@pytest.fixture(scope="module")
def two(place: Path) -> Path:
    """A second run, with images of another size, and a copy of it under the same name."""
    write_run(place / "other", 5, recipe=tiny_recipe(eval_resize=48, eval_crop=40))
    write_run(place / "copies" / "other", 5, recipe=tiny_recipe(eval_resize=48, eval_crop=40))
    return place


def test_checkpoints_side_by_side_are_prepared_alike(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = two / "compared"
    assert compare(two, "--out", str(out), "--json") == 0
    told, err = capsys.readouterr()
    values = json.loads(told)
    first, second = values["comparison"]["checkpoints"]
    assert (first["name"], second["name"]) == ("run step 5", "other step 5")
    assert first["preprocessing"] == second["preprocessing"]
    assert (first["preprocessing"]["resize"], first["preprocessing"]["crop"]) == (36, 32)
    assert "other has resize 48, crop 40, bilinear of its own (--own-preprocessing)" in err
    assert values["comparison"]["tests"] == 2
    assert set(values["checkpoints"]["other step 5"]["results"]) == {"knn", "retrieval"}
    assert all(one["cost"]["images_per_second"] > 0 and one["cost"]["flops"] > 0 for one in (first, second))
    parameters = sum(tensor.numel() for tensor in excb.load(two / "run").network.parameters())
    assert first["cost"]["parameters"] == parameters
    for name in ("run-step-5", "other-step-5"):
        assert (out / name / "report.html").is_file()
    text = (out / "comparison.md").read_text(encoding="utf-8")
    assert f"{first['figures']['knn_top1_k20']['percent']:.2f}" in text

    assert compare(two, "--out", str(out), "--json") == 0  # nothing is measured again, cost included
    again, err = capsys.readouterr()
    assert json.loads(again) == values
    assert err.count("finished before") == 4


def test_tiers_are_by_the_tests_of_compare(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of retrieval over queries and gallery, and of segmentation by areas, which are no scores of images."""
    out, masks = two / "tiers", write_set(two / "masks", train=32)
    assert compare(two, "--out", str(out), "--masks", str(masks), "--only", "retrieval", "dense", "--json") == 0
    found = json.loads(capsys.readouterr().out)["comparison"]
    said = {each["figure"]: each["p_value"] for each in found["p_values"]}
    raw = {}
    for step, figure in (("retrieval", "retrieval_mAP"), ("dense", "dense_knn_miou")):
        first, second = (out / name / f"{step}.json" for name in ("run-step-5", "other-step-5"))
        raw[figure] = compare_results(first, second, QUIET, figure=figure, table=False)["figures"][figure]["p_value"]
    smaller, larger = sorted(raw, key=lambda figure: raw[figure])
    holm = {smaller: min(1.0, 2 * raw[smaller])}
    assert said == pytest.approx(holm | {larger: max(holm[smaller], raw[larger])})
    assert all(cell["tier"] is not None for one in found["checkpoints"] for cell in one["figures"].values())


def test_each_checkpoint_may_keep_its_own_preprocessing(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(two, "--own-preprocessing", "--dry-run", "--json") == 0
    out, err = capsys.readouterr()
    assert list(json.loads(out)["plans"]) == ["run step 5", "other step 5"]
    assert "prepared alike" not in err


def test_checkpoints_of_one_name_are_told_apart(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints = ("{place}/other", "{place}/copies/other")
    assert compare(two, "--dry-run", "--json", checkpoints=checkpoints) == 0
    assert list(json.loads(capsys.readouterr().out)["plans"]) == [each.format(place=two) for each in checkpoints]


@pytest.mark.parametrize(
    ("checkpoints", "message"),
    [
        (("{place}/run", "{place}/run"), "--ckpt names {place}/run twice"),
        (("{place}/run", "{place}/none.pt"), "none.pt"),
    ],
)
def test_a_wrong_checkpoint_is_told_before_any_work(
    two: Path, checkpoints: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = two / "refused"
    assert compare(two, "--out", str(out), checkpoints=checkpoints) == 2
    err = capsys.readouterr().err
    assert message.format(place=two) in err
    assert err.count("\n") == 1
    assert not list(out.glob("*")) if out.exists() else True
