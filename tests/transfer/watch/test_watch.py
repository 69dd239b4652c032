"""`excb-eval watch` on a run folder: figures as by hand, restarts after kills, live runs, what is gone or damaged."""

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

import excb
from excb.charts.tensorboard import TensorBoardWriter
from excb.errors import UserError
from excb.transfer.watch import log, runs, watching
from excb.transfer.watch.measuring import Measuring
from tests import forked
from tests.clone import ROOT
from tests.forked import launch
from tests.run_files import contents, damage, tiny_recipe, write_run
from tests.transfer.labelled_images import features_by_loop, knn_by_loop
from tests.transfer.watch.watched import MACHINE, PROTOCOL, by_hand, figures, finish, grow, lines, watch

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run, whose best checkpoint is none of the newest."""
    run = grow(tmp_path / "first", 10, 20, 30)
    finish(run, 30)
    return run


def no_more_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: Any) -> None:
        raise AssertionError("measured once more")

    monkeypatch.setattr(Measuring, "__call__", measured)


def live(monkeypatch: pytest.MonkeyPatch, *turns: Callable[[], object]) -> None:
    """Events while the watch waits: one each time, and Ctrl-C after the last."""
    left = list(turns)

    def pause(_seconds: float) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    monkeypatch.setattr(watching, "pause", pause)


# ---------------------------------------------------------------------------------------------------------------------
# Figures
# ---------------------------------------------------------------------------------------------------------------------


def test_figures_are_those_by_hand_and_those_of_the_loop(run: Path, data: Path, tmp_path: Path) -> None:
    assert watch(run, data) == 0
    measured = figures(lines(run / "watch"))
    assert list(measured) == [10, 20, 30]
    for step, found in measured.items():
        file = run / "checkpoints" / f"step-{step}.pt"
        assert found == by_hand(file, data, tmp_path)
        backbone = excb.load(file)
        bank, queries = features_by_loop(backbone, data / "train"), features_by_loop(backbone, data / "test")
        top1, _ = knn_by_loop(*bank, *queries, k=5, temperature=0.07)
        assert found[0]["knn_top1_k5"] == pytest.approx(top1, abs=1e-4)
    assert len({found[0]["knn_top1_k5"] for found in measured.values()}) > 1


@pytest.mark.parametrize(
    ("protocol", "figure"),
    [
        ("retrieval", "retrieval_mAP"),
        ("linear --protocol logreg", "linear_top1"),
        ("semisup --percent 10 --frozen", "semisup_10pct_frozen_top1"),
    ],
)
def test_other_protocols(tmp_path: Path, data: Path, protocol: str, figure: str) -> None:
    run = grow(tmp_path / "run", 10)
    assert watch(run, data, "--once", protocol=protocol) == 0
    (line,) = lines(run / "watch")
    assert line["figure"] == figure
    assert figures([line])[10] == by_hand(run / "checkpoints" / "step-10.pt", data, tmp_path, protocol)


def test_two_processes_write_the_log_of_one(run: Path, data: Path, tmp_path: Path) -> None:
    usual = ["watch", str(run), "--data", str(data), "--protocol", PROTOCOL, *MACHINE, "--quiet"]
    assert launch("excb.transfer.cli", [*usual, "--out", str(tmp_path / "two")], 2) == 0
    assert watch(run, data, "--out", str(tmp_path / "one")) == 0
    assert lines(tmp_path / "two") == lines(tmp_path / "one")


def test_a_run_as_training_left_it(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "finished"
    shutil.copytree(ROOT / "tests" / "old_files" / "finished", run)
    assert watch(run, data) == 0
    assert [(line["step"], line["epoch"]) for line in lines(run / "watch")] == [(9, 3.0)]
    assert "steps 3, 6: gone before they were measured" in capsys.readouterr().err


def test_the_run_is_only_read(run: Path, data: Path, tmp_path: Path) -> None:
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    assert watch(run, data, "--out", str(tmp_path / "out")) == 0
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    left = {file.name for file in (tmp_path / "out").iterdir()}
    assert left == {"watch.jsonl", "watch.jsonl.lock", "best.json", "watch.html", "tensorboard"}


def test_event_files_hold_the_figures_and_their_intervals(run: Path, data: Path) -> None:
    for _ in range(2):  # the second start writes them anew
        assert watch(run, data) == 0
    (file,) = (run / "watch" / "tensorboard").iterdir()
    found = [
        (event.step, value.tag, round(value.tensor.float_val[0], 3))
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
    ]
    expected = []
    for line in lines(run / "watch"):
        low, high = line["intervals"][line["figure"]]
        values = {"": line["figures"][line["figure"]], "_low": low, "_high": high}
        expected += [(line["step"], f"watch/knn_top1_k5{name}", round(value, 3)) for name, value in values.items()]
    assert found == expected


def test_best_is_the_highest_that_is_kept(run: Path, data: Path) -> None:
    assert watch(run, data) == 0
    values = {line["step"]: line["figures"]["knn_top1_k5"] for line in lines(run / "watch")}
    order = sorted(values, key=lambda step: (-values[step], step))

    def pointer() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((run / "watch" / "best.json").read_text(encoding="utf-8"))
        return found

    best = pointer()
    assert (best["step"], best["value"], best["kept"]) == (order[0], values[order[0]], True)
    assert excb.load(best["checkpoint"]).entry.step == order[0]
    (run / "checkpoints" / f"step-{order[0]}.pt").unlink()
    assert watch(run, data) == 0
    best = pointer()
    assert (best["step"], best["kept"]) == (order[1], True)


# ---------------------------------------------------------------------------------------------------------------------
# Restarts
# ---------------------------------------------------------------------------------------------------------------------


def test_a_second_start_measures_nothing_again(
    run: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert watch(run, data) == 0
    first, before = capsys.readouterr().out, (run / "watch" / "watch.jsonl").read_bytes()
    no_more_measuring(monkeypatch)
    assert watch(run, data) == 0
    assert (run / "watch" / "watch.jsonl").read_bytes() == before
    assert len(capsys.readouterr().out.splitlines()) == len(first.splitlines()) == 3


def test_stopped_between_measuring_and_writing_it_down(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    append = log.Log.append

    def killed(self: log.Log, measurement: log.CheckpointFigures) -> None:
        if measurement.step == 20:
            raise KilledError
        append(self, measurement)

    with monkeypatch.context() as patch:
        patch.setattr(log.Log, "append", killed)
        with pytest.raises(KilledError):
            watch(run, data)
    assert [line["step"] for line in lines(run / "watch")] == [10]
    assert (run / "watch" / ".unfinished" / "features").is_dir()  # of step 20: the restart need not compute them again
    assert watch(run, data) == 0
    assert not (run / "watch" / ".unfinished").exists()
    monkeypatch.chdir(run)
    assert watch(run, data, "--out", str(tmp_path / "undisturbed")) == 0
    expected = [line | {"setup": line["setup"] | {"run": ".."}} for line in lines(tmp_path / "undisturbed")]
    assert lines(run / "watch") == expected


KILL_IN_THE_MIDDLE_OF_A_LINE = """
import json, os, signal, sys
from dataclasses import asdict
from excb.transfer.cli import main
from excb.transfer.watch import log

append = log.Log.append

def torn(self, measurement):
    if measurement.step != 20:
        return append(self, measurement)
    with self.file.open("a") as stream:
        stream.write(json.dumps(asdict(measurement))[:200])
    os.kill(os.getpid(), signal.SIGKILL)

log.Log.append = torn
main(sys.argv[1:])
"""


def test_killed_in_the_middle_of_a_line_and_started_again(run: Path, data: Path, tmp_path: Path) -> None:
    words = ["watch", str(run), "--data", str(data), "--protocol", PROTOCOL, *MACHINE]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    killed = forked.run(
        [sys.executable, "-c", KILL_IN_THE_MIDDLE_OF_A_LINE, *words],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    file = run / "watch" / "watch.jsonl"
    assert file.read_text(encoding="utf-8").count("\n") == 1
    assert not file.read_text(encoding="utf-8").endswith("\n")
    assert watch(run, data) == 0
    measured = figures(lines(run / "watch"))
    assert list(measured) == [10, 20, 30]
    for step, found in measured.items():
        assert found == by_hand(run / "checkpoints" / f"step-{step}.pt", data, tmp_path)


def test_a_checkpoint_written_again_is_measured_again_if_its_weights_are_others(
    run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert watch(run, data) == 0
    file = run / "checkpoints" / "step-20.pt"
    os.utime(file)
    assert watch(run, data) == 0
    assert [line["step"] for line in lines(run / "watch")] == [10, 20, 30]
    excb_recipe = tiny_recipe(eval_resize=36, eval_crop=32)
    write_run(run, 20, recipe=excb_recipe, model=contents(excb_recipe, step=20, seed=7)["model"])
    assert watch(run, data) == 0
    assert "step 20 was written again with other weights" in capsys.readouterr().err
    assert [line["step"] for line in lines(run / "watch")] == [10, 20, 30, 20]
    assert figures(lines(run / "watch"))[20] == by_hand(file, data, tmp_path)


def test_a_run_and_its_figures_may_be_moved_together(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watch(run, data) == 0
    moved = run.rename(tmp_path / "archive")
    no_more_measuring(monkeypatch)
    assert watch(moved, data) == 0


# ---------------------------------------------------------------------------------------------------------------------
# A live run
# ---------------------------------------------------------------------------------------------------------------------


def test_a_live_run_is_followed_to_its_end(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, pages = grow(tmp_path / "run"), []

    def page() -> str:
        return (run / "watch" / "watch.html").read_text(encoding="utf-8")

    def goes_on_too_fast() -> None:  # two checkpoints between looks, of which one is kept
        pages.append(page())
        grow(run, 20, 30, keep=1)

    def ends() -> None:
        pages.append(page())
        grow(run, 40, keep=2)
        finish(run, 40)

    live(monkeypatch, lambda: grow(run, 10), goes_on_too_fast, ends)
    assert watch(run, data, "--every", "30s") == 0
    assert [line["step"] for line in lines(run / "watch")] == [10, 30, 40]
    out, err = capsys.readouterr()
    assert [row.split("  ")[:2] for row in out.splitlines()] == [
        [f"step {step}", f"epoch {step // 10}"] for step in (10, 30, 40)
    ]
    assert err.count("looking for new checkpoints every 30 s") == 1
    assert "warning: step 20: gone before it was measured" in err
    assert ['http-equiv="refresh" content="30"' in text for text in (*pages, page())] == [True, True, False]
    assert "step 20. The run keeps" in page()
    assert "removed since" in page()  # step 10 was measured, and is gone


def test_what_a_run_had_removed_before_the_watch_began_is_named(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = grow(tmp_path / "run", 10, 20, 30, 40, keep=2)
    assert watch(run, data, "--once") == 0
    assert "steps 10, 20: gone before they were measured" in capsys.readouterr().err
    assert [line["step"] for line in lines(run / "watch")] == [30, 40]


def test_removed_between_the_look_and_the_reading(
    run: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    obtain = runs.LocalRun.checkpoint

    def pruned(self: runs.LocalRun, step: int) -> Path | None:
        file = obtain(self, step)
        if step == 10 and file is not None:
            file.unlink()
        return file

    monkeypatch.setattr(runs.LocalRun, "checkpoint", pruned)
    assert watch(run, data) == 0
    assert "warning: step 10: gone before it was measured" in capsys.readouterr().err
    assert [line["step"] for line in lines(run / "watch")] == [20, 30]


def test_a_file_that_is_being_written_is_not_touched(run: Path, data: Path) -> None:
    partial = run / "checkpoints" / ".step-40.pt.0123.tmp"
    partial.write_bytes((run / "checkpoints" / "step-30.pt").read_bytes()[:1000])
    assert watch(run, data) == 0
    assert [line["step"] for line in lines(run / "watch")] == [10, 20, 30]


def test_a_damaged_checkpoint_is_named_and_passed_over(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run / "checkpoints" / "step-20.pt")
    assert watch(run, data) == 0
    assert capsys.readouterr().err.count("step-20.pt is damaged") == 1
    assert [line["step"] for line in lines(run / "watch")] == [10, 30]
    assert "step 20 cannot be read" in (run / "watch" / "watch.html").read_text(encoding="utf-8")


def test_ctrl_c_ends_it_and_the_same_command_continues(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = grow(tmp_path / "run", 10)
    live(monkeypatch)
    assert watch(run, data) == 130
    err = capsys.readouterr().err
    assert "1 checkpoint measured: the same command continues" in err
    assert "Traceback" not in err
    assert 'http-equiv="refresh"' not in (run / "watch" / "watch.html").read_text(encoding="utf-8")
    grow(run, 20)
    finish(run, 20)
    assert watch(run, data) == 0
    assert [line["step"] for line in lines(run / "watch")] == [10, 20]


# ---------------------------------------------------------------------------------------------------------------------
# What programs read, plans, and mistakes
# ---------------------------------------------------------------------------------------------------------------------


def test_json_is_a_line_for_each_checkpoint_and_a_summary(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = grow(tmp_path / "run", 10, 20, 30, keep=2)
    assert watch(run, data, "--once", "--json") == 0
    *measured, summary = map(json.loads, capsys.readouterr().out.splitlines())
    stored = (run / "watch" / "watch.jsonl").read_text(encoding="utf-8").splitlines()
    assert measured == list(map(json.loads, stored))
    assert summary["best"] == json.loads((run / "watch" / "best.json").read_text(encoding="utf-8"))
    assert (summary["gone"], summary["unreadable"], summary["finished"]) == ([10], {}, False)


def test_a_dry_run_says_what_is_to_do_and_writes_nothing(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = grow(tmp_path / "run", 10, 20, 30, keep=2)
    assert watch(run, data, "--dry-run", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(row["step"], row["state"]) for row in answer["checkpoints"]] == [
        (10, "gone"),
        (20, "to measure"),
        (30, "to measure"),
    ]
    assert not (run / "watch").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{here}/nothing", "--data", "{data}"), "no run is at {here}/nothing: name a run of excb-pretrain"),
        (("{data}", "--data", "{data}"), "which has neither checkpoints nor recipe.json"),
        (("{run}/report.json", "--data", "{data}"), "report.json is a file: name a run"),
        (("{here}/begun", "--data", "{data}", "--once"), "has no checkpoint yet: leave out --once to wait"),
        (("{here}/emptied", "--data", "{data}"), "is finished, and none of its checkpoints is left"),
        (("{run}", "--data", "{data}/train"), "train/"),
        (("{run}", "--train", "{data}/train/ant", "--test", "{data}/test/ant"), "has no classes"),
        (
            ("{run}", "--data", "{data}", "--protocol", "detection"),
            "no such protocol (there are knn, retrieval, linear",
        ),
        (("{run}", "--data", "{data}", "--protocol", "knm"), "did you mean 'knn'?"),
        (("{run}", "--data", "{data}", "--protocol", ""), "name a protocol, such as knn"),
        (("{run}", "--data", "{data}", "--protocol", "knn --out x"), "--out is not an option of knn alone"),
        (("{run}", "--data", "{data}", "--protocol", "knn --kk 3"), "unrecognized arguments: --kk"),
        (("{run}", "--data", "{data}", "--protocol", "semisup"), "--percent"),
        (("{run}", "--data", "{data}", "--every", "10"), "takes a time such as 30s, 10m or 2h, not '10'"),
        (("{run}", "--data", "{data}", "--every", "0m"), "takes a time such as"),
        (("{run}", "--data", "{data}", "--out", "{run}/report.json"), "is a file: name a folder"),
        (("{run}", "--data", "{data}", "--crop", "64", "--resize", "32"), "--crop 64 is larger than --resize 32"),
    ],
)
def test_a_mistake_is_one_line(
    run: Path, data: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from excb.transfer.cli import main

    grow(run.parent / "begun")
    finish(grow(run.parent / "emptied"), 10)
    places = {"here": run.parent, "run": run, "data": data}
    assert main(["watch", *(word.format(**places) for word in words), *MACHINE]) == 2
    err = capsys.readouterr().err.strip().splitlines()
    assert message.format(**places) in err[-1]
    assert err[-1].startswith("excb-eval: error: ")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"protocol": "knn --k 3 --backend torch"},
            "holds figures of `knn --backend torch --k 5`, now `knn --backend torch --k 3`",
        ),
        ({"data": "other"}, "holds figures on other test images: 21 of "),
        ({"run": "second"}, "holds figures of the run first, now second"),
        (
            {"words": ("--crop", "24")},
            "now `knn --backend torch --crop 24 --k 5`: repeat its command, name another folder with --out, or replace "
            "it with --overwrite",
        ),
    ],
)
def test_figures_of_another_kind_are_never_mixed(
    run: Path, data: Path, other: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run.parent
    assert watch(run, data, "--out", str(out)) == 0
    before = (out / "watch.jsonl").read_bytes()
    (out / "other").mkdir()
    (out / "other" / "train").symlink_to(data / "train")
    (out / "other" / "test").symlink_to(data / "train")
    second = grow(out / "second", 10) if "run" in other else run
    images = out / "other" if "data" in other else data
    words = other.get("words", ())
    assert watch(second, images, "--out", str(out), *words, protocol=other.get("protocol", PROTOCOL)) == 2
    assert message in capsys.readouterr().err
    assert (out / "watch.jsonl").read_bytes() == before


def test_files_of_something_else_are_kept(
    run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert watch(run, data, "--out", str(out)) == 0
    for name, other in itertools.product(("watch.jsonl", "best.json", "watch.html"), ("notes", "{}\n")):
        file = out / name
        file.write_text(other, encoding="utf-8")
        for more in ([], ["--dry-run"]):
            capsys.readouterr()
            assert watch(run, data, "--out", str(out), "--quiet", *more) == 2
            shown = capsys.readouterr().err
            assert (shown.count("\n"), str(file) in shown) == (1, True), shown
            assert file.read_text(encoding="utf-8") == other
        assert watch(run, data, "--out", str(out), "--overwrite") == 0
        assert file.read_text(encoding="utf-8") != other
        assert [line["step"] for line in lines(out)] == [10, 20, 30]
    no_more = (out / "watch.jsonl").read_bytes()
    assert watch(run, data, "--out", str(out)) == 0
    assert (out / "watch.jsonl").read_bytes() == no_more


def test_figures_of_another_kind_are_replaced_if_that_is_wanted(run: Path, data: Path) -> None:
    assert watch(run, data) == 0
    assert watch(run, data, "--overwrite", protocol="knn --k 3 --backend torch") == 0
    assert [line["figure"] for line in lines(run / "watch")] == ["knn_top1_k3"] * 3


def test_event_files_of_the_run_are_kept(run: Path, data: Path) -> None:
    """Where --out names the run's folder, both have their curves in one."""
    own = TensorBoardWriter(run / "tensorboard", purge_step=1)
    own.add_scalars({"loss": 4.0}, 1)
    own.close()
    (kept,) = (run / "tensorboard").iterdir()
    for _ in range(2):
        assert watch(run, data, "--out", str(run)) == 0
        files = list((run / "tensorboard").iterdir())
        assert (len(files), kept in files) == (2, True)


def test_two_watches_do_not_write_one_folder(run: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from filelock import FileLock

    (run / "watch").mkdir()
    with FileLock(run / "watch" / "watch.jsonl.lock"):
        assert watch(run, data) == 2
    assert "another watch writes to" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["[]", "null", "{}", "[" * 5000, '{"step": 1e999}', '{"step": -1}', "\x00", ""])
def test_lines_of_unknown_origin_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "watch.jsonl").write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"line 1 of .* is damaged: remove it"):
        log.Log(tmp_path, {})


def test_a_damaged_line_is_named(run: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert watch(run, data) == 0
    file = run / "watch" / "watch.jsonl"
    good = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join([good[0], good[1][:50], good[2], ""]), encoding="utf-8")
    assert watch(run, data) == 2
    assert f"line 2 of {file} is damaged: remove it" in capsys.readouterr().err
