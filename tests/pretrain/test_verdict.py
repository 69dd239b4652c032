"""The verdict of a run: what it says of figures that are known, and what a run writes and prints."""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from excb.checkpoint import run_checkpoint
from excb.errors import UserError
from excb.pretrain.__main__ import main
from excb.pretrain.recipes import RECIPES
from excb.pretrain.run.gain import TARGET, Adapted, Gain
from excb.pretrain.run.monitor import Monitor
from excb.pretrain.run.taught import NetworkCost
from excb.pretrain.verdict import RunFigures, RunVerdict, guessing, judge_run
from tests.pretrain.distil import taught
from tests.pretrain.small_runs import OVERRIDES, stopped_before, write_images
from tests.run_files import write_run

pytestmark = pytest.mark.usefixtures("one_thread")

REFERENCES = {"untrained": 33.6, "pixels": 47.4, "colour_histogram": 50.9, "guessing": 3.0}


def run(
    figure: float,
    *,
    name: str = "knn_top1",
    measured: int = 2640,
    references: Mapping[str, float] = REFERENCES,
    changes: Mapping[str, dict[str, Any]] = {},
    **values: Any,
) -> RunFigures:
    """A run of the recipe `conv4_tiny`, with 128 clusters and long enough, on 2,640 images."""
    recipe = RECIPES["conv4_tiny"]().change(method={"clusters": 128}).change(**changes)
    figures = {each: {name: value} for each, value in references.items()}
    return RunFigures(recipe, images=2640, measured=measured, figures={name: figure}, references=figures, **values)


def epochs(*figures: dict[str, float]) -> Sequence[dict[str, Any]]:
    return [{"epoch": 10 * number, "loss": 4.0} | each for number, each in enumerate(figures, 1)]


COSTS = {"run": NetworkCost(700_000, 2.7, 1.0), "mobilenetv2": NetworkCost(2_100_000, 8.1, 4.0)}


def test_a_student_is_judged_beside_its_teacher_which_is_no_mere_comparison() -> None:
    verdict = judge_run(run(60.0, references=REFERENCES | {"mobilenetv2": 65.0, "other": 70.0}, costs=COSTS))
    assert verdict.learned is True  # a teacher is not a reference that a student must be ahead of
    assert "It keeps 92 % of the k-NN top-1 of mobilenetv2 (60.0 of 65.0 %) at 1/4 of its time" in verdict.summary
    assert "For comparison: other (70.0 %). The strongest reference is other (70.0 %)" in verdict.summary
    assert RunVerdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) == verdict


@pytest.mark.parametrize(
    ("original", "resized", "learned", "begins"),
    [
        (62.0, 63.0, None, "Keep the original, and use it at 224 pixels: the original at 224 pixels (62.0 %)"),
        (62.0, 68.0, True, "Better than the original"),
        (50.0, 40.0, True, "Better than the original"),
    ],
)
def test_a_gain_at_fewer_pixels_is_judged_beside_the_original_as_its_checkpoint_states_it(
    original: float, resized: float, learned: bool | None, begins: str
) -> None:
    gain = Gain("k-NN top-1", "2,640 images of the training set", 54.0, 60.0, 4.0, 8.0)
    sizes = {"the original at 224 pixels": original, "this run at 224 pixels": resized}
    verdict = judge_run(run(60.0, references=REFERENCES | sizes, adapted=Adapted({TARGET: gain}, 4, 400, 4)))
    assert verdict.learned is learned
    assert verdict.summary.startswith(begins)
    assert ("evaluate it there" in verdict.summary) == (resized == 68.0)
    assert "distil" not in " ".join(verdict.advice)


def test_each_size_has_the_margin_of_its_own_pair() -> None:
    gain = Gain("k-NN top-1", "2,640 images of the training set", 54.0, 60.0, 4.0, 8.0)
    original, resized = "the original at 224 pixels", "this run at 224 pixels"
    figures = REFERENCES | {original: 62.0, resized: 64.0}
    for margin, learned in ((1.0, True), (3.0, None)):
        margins = {original: 5.0, resized: margin}
        judged = run(60.0, references=figures, adapted=Adapted({TARGET: gain}, 4, 400, 4), margins=margins)
        assert judge_run(judged).learned is learned


def test_a_student_below_its_references_does_not_help() -> None:
    verdict = judge_run(run(40.0, references=REFERENCES | {"mobilenetv2": 65.0}, costs=COSTS))
    assert verdict.learned is None
    assert "On these images it does not help: use mobilenetv2 as it is" in verdict.summary
    assert not any("adapt NAME" in line for line in verdict.advice)  # the sentence names a trained network already


def test_a_run_with_a_teacher_reports_and_prints_what_both_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher = taught.write_teacher(tmp_path, taught.RESNET)
    images = write_images(tmp_path / "images")
    assert main([word for word in taught.command(images, tmp_path / "run", str(teacher)) if word != "--quiet"]) == 0
    verdict = RunVerdict.from_dict(json.loads((tmp_path / "run" / "report.json").read_text())["verdict"])
    assert set(verdict.costs) == {"run", str(teacher)}
    assert str(teacher) in verdict.references
    printed = capsys.readouterr().out
    assert "What it costs" in printed
    assert "per MiB" in printed


@pytest.mark.parametrize(
    ("figure", "measured", "learned", "words"),
    [
        (60.0, 2640, True, "This run learned: its k-NN top-1 of 60.0 % (of 2,640 train images, each classified by its"),
        (51.5, 2640, None, "no different from a colour histogram (50.9 %) within 2.7"),
        (45.0, 2640, None, "5.9 points below a colour histogram (50.9 %), for which no training run is needed"),
        (35.0, 2640, False, "This run learned nothing: its k-NN top-1 of 35.0 %"),
        (20.0, 2640, False, "13.6 points below the same network untrained (33.6 %)"),
        (40.0, 60, None, "cannot be judged from 60 images: its k-NN top-1 of 40.0 %"),
    ],
)
def test_a_run_is_judged_by_what_it_is_ahead_of(figure: float, measured: int, learned: bool | None, words: str) -> None:
    verdict = judge_run(run(figure, measured=measured))
    assert verdict.learned is learned
    assert words in verdict.summary


def test_the_margin_is_that_of_two_shares() -> None:
    one = run(60.0)
    expected = 1.96 * math.sqrt((0.6 * 0.4 + 0.509 * 0.491) / 2640)
    assert one.margin("colour_histogram") == pytest.approx(100 * expected)
    just, barely = (judge_run(run(50.9 + 100 * expected + more)).learned for more in (0.05, -0.05))
    assert (just, barely) == (True, None)


def test_an_alarm_of_a_failed_run_decides_and_all_alarms_are_repeated() -> None:
    alarms = [
        {"kind": "alarm", "epoch": 2, "name": "chance", "message": "the loss of 9.010 is no better than chance"},
        {"kind": "alarm", "epoch": 3, "name": "rotating", "message": "whole batches move"},
        {"kind": "alarm", "epoch": 9, "name": "chance", "message": "again"},
    ]
    changes = {"method": {"clusters": 8192}, "optim": {"epochs": 2}}
    verdict = judge_run(run(60.0, changes=changes, alarms=alarms, active=["chance"]))
    assert verdict.learned is False
    assert verdict.summary.startswith("This run failed: its loss is no better than chance. It has a k-NN top-1 of 60.0")
    assert verdict.alarms == (
        "epoch 2, and still at the end: the loss of 9.010 is no better than chance",
        "epoch 3: whole batches move",
    )
    fewer, longer, start, more = verdict.advice
    assert fewer == "fewer clusters: method.clusters=128, some 21 images each (now 8,192, 0.32 images each)"
    assert "optim.epochs=37 in another --out (now 2, which are 82 steps" in longer
    assert "excb-pretrain adapt NAME" in start
    assert "2,640 are few" in more
    assert verdict.lines()[1:3] == [f"alarm, {line}" for line in verdict.alarms]


def test_advice_follows_from_the_curve() -> None:
    rising = epochs({"knn_top1": 40.0}, {"knn_top1": 55.0}, {"knn_top1": 58.0}, {"knn_top1": 60.0})
    flat = epochs({"knn_top1": 59.0}, {"knn_top1": 59.5}, {"knn_top1": 59.6}, {"knn_top1": 60.0})
    unmeasured = epochs({"loss": 4.0}, {"loss": 3.0}, {"loss": 2.5}, {"loss": 2.0, "knn_top1": 60.0})
    (advice,) = judge_run(run(60.0, epochs=rising)).advice
    assert advice == (
        "train longer: optim.epochs=80 in another --out (k-NN top-1 still rose by 2.0 points after epoch 30)"
    )
    assert judge_run(run(60.0, epochs=flat)).advice == ()
    assert "the loss still fell from 2.500 to 2.000" in judge_run(run(60.0, epochs=unmeasured)).advice[0]


def test_colours_that_views_lose_are_named_where_a_histogram_is_best() -> None:
    def named(verdict: RunVerdict) -> bool:
        words = "try views that keep the colours, which distinguish these images (views.jitter=0 views.grey=0)"
        return any(advice.startswith(words) for advice in verdict.advice)

    assert named(judge_run(run(45.0, changes={"views": {"jitter": 0.8}})))
    assert not named(judge_run(run(45.0)))
    few_colours = REFERENCES | {"colour_histogram": 10.0}
    assert not named(judge_run(run(45.0, references=few_colours, changes={"views": {"jitter": 0.8}})))
    # Of 64 images, two more that a histogram gets right may be chance.
    assert not named(judge_run(run(45.0, measured=64, changes={"views": {"jitter": 0.8}})))


def test_colours_are_named_beside_better_patches_unless_the_run_is_ahead_of_them() -> None:
    beside, changes = REFERENCES | {"patches": 70.0}, {"views": {"jitter": 0.8}}
    behind, ahead = (judge_run(run(figure, references=beside, changes=changes)) for figure in (45.0, 60.0))
    assert "25.0 points below whitened patches with k-means (70.0 %), for which no training run" in behind.summary
    assert any("keep the colours" in advice for advice in behind.advice)
    assert ahead.learned is None
    assert "10.0 points below whitened patches with k-means" in ahead.summary
    assert not any("keep the colours" in advice for advice in ahead.advice)


@pytest.mark.parametrize(
    ("data", "now", "name", "told"),
    [
        (None, 54.5, "knn_top1", True),
        (None, 60.0, "knn_top1", False),  # better: nothing is hidden
        ("photos", 54.5, "knn_top1", False),  # of images that it did not train on
        (None, 54.5, "instance_retrieval", False),  # of each image's own copies, not of its neighbours
    ],
)
def test_a_gain_that_neighbours_of_one_series_may_hide_is_to_be_looked_for_elsewhere(
    data: str | None, now: float, name: str, told: bool
) -> None:
    gain = Gain("k-NN top-1", "2,640 images of the training set", 54.0, now, now - 56.0, now - 52.0)
    changes: dict[str, dict[str, Any]] = {"adapt": {"warmup_epochs": 1.0}, "monitor": {"data": data}}
    verdict = judge_run(run(now, name=name, changes=changes, adapted=Adapted({TARGET: gain}, 4, 400, 4)))
    assert any("on labelled images that this run did not see" in advice for advice in verdict.advice) == told


def test_the_checkpoint_that_a_run_started_from_may_be_the_best_reference() -> None:
    verdict = judge_run(run(45.0, references=REFERENCES | {"patches": 52.0, "start": 58.0}))
    assert "13.0 points below the checkpoint it started from (58.0 %)" in verdict.summary


def test_what_was_only_asked_for_does_not_decide() -> None:
    verdict = judge_run(run(60.0, references=REFERENCES | {"rn50_400ep": 90.0}))
    assert verdict.learned is True
    assert "For comparison: rn50_400ep (90.0 %)." in verdict.summary
    assert "The strongest reference is rn50_400ep (90.0 %), 30.0 points above." in verdict.summary
    assert any("excb-pretrain distil rn50_400ep --data DIR" in advice for advice in verdict.advice)
    within_chance = judge_run(run(60.0, references=REFERENCES | {"rn50_400ep": 61.0}))
    assert "strongest" not in within_chance.summary
    assert not any("distil" in advice for advice in within_chance.advice)


def test_the_spread_that_was_measured_decides_what_is_chance() -> None:
    margins = {"colour_histogram": 12.0, "guessing": 3.0}
    assert judge_run(run(60.0)).learned is True
    found = judge_run(run(60.0, margins=margins))
    assert found.learned is None
    assert "no different from a colour histogram (50.9 %) within 12.0" in found.summary
    assert RunVerdict.from_dict(found.to_dict()) == found
    rising = epochs({"knn_top1": 40.0}, {"knn_top1": 55.0}, {"knn_top1": 58.0}, {"knn_top1": 60.0})
    assert any("still rose" in advice for advice in judge_run(run(60.0, epochs=rising)).advice)
    within_chance = judge_run(run(60.0, epochs=rising, margins={"guessing": 3.0}))
    assert not any("still rose" in advice for advice in within_chance.advice)


def test_without_labels_instances_decide_and_the_unit_is_told() -> None:
    verdict = judge_run(run(60.0, name="instance_retrieval"))
    assert verdict.learned is True
    assert "instance retrieval of 60.0 % (of 2,640 train images that are nearest to their own" in verdict.summary
    assert "Without labels" in verdict.summary


def test_guesses_against_counts() -> None:
    figures = guessing([0, 1, 1, 2], measured=4, k=20)
    assert figures == {"knn_top1": 50.0, "instance_retrieval": 25.0, "neighbour_agreement": 100.0}
    assert guessing(None, measured=101, k=20) == {"instance_retrieval": 0.99, "neighbour_agreement": 20.0}


def test_a_verdict_survives_its_file() -> None:
    verdict = judge_run(run(45.0))
    assert RunVerdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) == verdict
    for wrong in ({"learned": "yes"}, {"references": 3}, {"references": {"pixels": {"knn_top1": "many"}}}):
        with pytest.raises((AttributeError, LookupError, TypeError, ValueError)):
            RunVerdict.from_dict(verdict.to_dict() | wrong)


# ---------------------------------------------------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged")
    (folder / "images").symlink_to(finished_run.parent / "images")
    shutil.copytree(finished_run, folder / "run")
    return folder


def train(folder: Path, *words: str) -> int:
    usual = ["quickstart", "--data", str(folder / "images"), "--out", str(folder / "run"), *OVERRIDES]
    return int(main([*usual, *words]))


def report(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "run" / "report.json").read_text(encoding="utf-8"))
    return values


def test_a_run_ends_with_its_verdict(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = report(finished)
    verdict = RunVerdict.from_dict(before["verdict"])
    assert verdict.references.keys() == {"untrained", "pixels", "colour_histogram", "patches", "guessing"}
    assert all(values.keys() == verdict.figures.keys() for values in verdict.references.values())
    assert verdict.figures["knn_top1"] == round(before["last"]["knn_top1"], 2)
    assert verdict.figures["instance_retrieval"] == round(before["last"]["instance_retrieval"], 2)
    assert verdict.references["guessing"]["knn_top1"] == 33.33
    with pytest.MonkeyPatch.context() as patch:  # a finished run is told again from its report, and nothing is measured
        patch.setattr(Monitor, "compare", lambda *_, **__: pytest.fail("measured again"))
        assert train(finished) == 0
    out = capsys.readouterr().out
    assert "Did it learn?" in out
    assert "a colour histogram" in out
    assert verdict.summary in out
    assert report(finished)["verdict"] == before["verdict"]


def test_a_checkpoint_is_compared_where_asked(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = str(write_run(finished / "other", 3))
    assert train(finished, "--against", other, "--quiet") == 0
    assert other in report(finished)["verdict"]["references"]
    assert f"For comparison: {other} (" in capsys.readouterr().out
    assert train(finished, "--against", str(finished / "none.pt")) == 2
    assert "none.pt" in capsys.readouterr().err


def test_json_keeps_the_verdict_out_of_the_result(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(finished, "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["verdict"]["summary"] in err


def test_a_damaged_verdict_is_measured_again(finished: Path) -> None:
    values = report(finished)
    file = finished / "run" / "report.json"
    file.write_text(json.dumps(values | {"verdict": {"learned": 3}}), encoding="utf-8")
    assert train(finished, "--quiet") == 0
    assert report(finished)["verdict"]["figures"] == values["verdict"]["figures"]


def test_a_run_that_continues_another_is_compared_with_its_start(finished: Path, tmp_path: Path) -> None:
    words = ["--out", str(tmp_path / "next"), f"init={finished / 'run'}", "optim.epochs=1", "--quiet"]
    assert train(finished, *words) == 0
    values = json.loads((tmp_path / "next" / "report.json").read_text(encoding="utf-8"))["verdict"]
    assert values["references"]["start"] == report(finished)["verdict"]["figures"]


def test_a_start_that_changed_while_the_run_trained_is_no_reference(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began = tmp_path / "began"
    shutil.copytree(finished / "run", began / "start")
    monkeypatch.chdir(began)
    words = ["--out", str(tmp_path / "next"), "optim.epochs=1"]
    with stopped_before(2):
        assert train(finished, *words, "init=start") == 143
    # Elsewhere the same name leads to another network, which the run is not compared with.
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished / "run", tmp_path / "start")
    newest = run_checkpoint.in_run(tmp_path / "start")[0]
    stored = run_checkpoint.read_run_checkpoint(newest)
    stored["model"] = {name: value * 2 for name, value in stored["model"].items()}
    run_checkpoint.write_run_checkpoint(stored, newest)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "next", copy)
    assert train(finished, "--out", str(copy), "optim.epochs=1", "init=start") == 0
    assert "init=start is another network now than the one that this run started from" in capsys.readouterr().err
    assert "start" not in json.loads((copy / "report.json").read_text(encoding="utf-8"))["verdict"]["references"]
    # By its path from there it is the one that the run began with.
    assert train(finished, *words, "init=began/start") == 0
    assert (
        "start" in json.loads((tmp_path / "next" / "report.json").read_text(encoding="utf-8"))["verdict"]["references"]
    )


def test_recipes_without_measurements_are_judged_by_the_loss() -> None:
    assert replace(run(60.0), epochs=[{"epoch": "x", "loss": None}, {"loss": 3.0}]).epochs
    assert judge_run(replace(run(60.0), epochs=[{"epoch": "x", "loss": None}, {"loss": 3.0}])).advice == ()


def test_checkpoints_to_compare_with_are_loaded_before_training(tmp_path: Path) -> None:
    from excb.pretrain.training import judging

    with pytest.raises(UserError, match="no checkpoint is called 'rn50_400pe'"):
        judging.check_references(["rn50_400pe"])
