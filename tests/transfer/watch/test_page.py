"""The page and the rows of a watch: what they say, and what names from outside can do in them."""

import re
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from excb.transfer.watch.chart import draw_watch
from excb.transfer.watch.log import CheckpointFigures
from excb.transfer.watch.page import render_watch
from excb.transfer.watch.runs import LocalRun, Snapshot
from excb.transfer.watch.state import WatchState, best_first, steps_in_words

pytestmark = pytest.mark.usefixtures("drawn")

SETUP = {
    "run": "..",
    "protocol": "knn",
    "options": {"k": [20]},
    "train": {"root": "photos/train", "images": 35},
    "test": {"root": "photos/test", "images": 21},
}


def measurement(step: int, value: float, **changes: Any) -> CheckpointFigures:
    values: dict[str, Any] = {
        "step": step,
        "epoch": step / 10,
        "stamp": "1",
        "weights_sha256": "0",
        "figure": "knn_top1_k20",
        "figures": {"knn_top1_k20": value},
        "intervals": {"knn_top1_k20": (value - 3, value + 3)},
        "references": {"majority": {"knn_top1_k20": 20.0}, "chance": {"knn_top1_k20": 14.3}},
        "notes": (),
        "protocol": "knn",
        "protocol_hash": "0",
        "setup": SETUP,
        "seconds": 3.0,
        "created": "2026-11-23",
        "version": "0.1.0",
    }
    return CheckpointFigures(**values | changes)


def state(*measured: CheckpointFigures, name: str = "first", **changes: Any) -> WatchState:
    kept = {one.step: "1" for one in measured}
    metrics = [
        {"kind": "epoch", "step": 10 * epoch, "epoch": epoch, "loss": 5.0 - epoch, "knn_top1": 30.0}
        for epoch in (1, 2, 3)
    ]
    values: dict[str, Any] = {"snapshot": Snapshot(kept, metrics, finished=False)}
    return WatchState(LocalRun(Path("runs") / name), SETUP, measured=measured, **values | changes)


def test_it_shows_the_watched_curve_the_runs_own_and_a_row_for_each_checkpoint() -> None:
    shown = state(measurement(10, 50.0), measurement(20, 60.0), measurement(30, 55.0), missed=[15])
    page = render_watch(shown, refresh=30, now=datetime(2026, 11, 23, tzinfo=UTC))
    (picture,) = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", page)
    assert b64decode(picture).lstrip().startswith(b"<?xml")
    assert re.findall(r'<th scope="row">step (\d+)', page) == ["30", "20", "10"]
    assert '<th scope="row">step 20<span class="badge">best</span>' in page
    assert "57.00 to 63.00" in page
    assert "majority class" in page
    assert "step 15. The run keeps" in page
    assert '<meta http-equiv="refresh" content="30">' in page
    figure: Any = draw_watch(shown)
    assert figure is not None
    top, *own = figure.axes
    assert {line.get_label() for line in top.get_lines()} >= {"best, 60.00", "majority class 20.0", "chance 14.3"}
    assert list(top.get_lines()[0].get_xydata()[:, 1]) == [50.0, 60.0, 55.0]
    assert [axes.get_title() for axes in own] == ["Loss of the run", "Its own images, %"]
    assert list(own[0].get_lines()[0].get_xydata()[:, 1]) == [4.0, 3.0, 2.0]


def test_it_ends() -> None:
    page = render_watch(state(measurement(10, 50.0)), refresh=None)
    assert "refresh" not in page
    assert "The watch has ended." in page


@pytest.mark.browser
def test_a_browser_shows_it_and_loads_it_again(tmp_path: Path) -> None:
    from tests.browser import chromium

    file = tmp_path / "watch.html"
    file.write_text(render_watch(state(measurement(10, 50.0)), refresh=1), encoding="utf-8")
    with chromium() as page:
        page.open(file)
        assert page.run("document.querySelector('figure img').naturalWidth") > 100
        file.write_text(
            render_watch(state(measurement(10, 50.0), measurement(20, 60.0)), refresh=None), encoding="utf-8"
        )
        while page.run("document.querySelectorAll('tbody tr').length") != 2:
            page.wait_until_loaded()
        assert page.problems == []


def test_nothing_measured_yet() -> None:
    page = render_watch(state(), refresh=30)
    assert "checkpoints measured" in page
    assert draw_watch(state(snapshot=Snapshot({}, (), finished=False))) is None


def test_names_cannot_become_markup() -> None:
    page = render_watch(state(measurement(10, 50.0), name="<script>x</script>"), refresh=30)
    assert "<script" not in page


def test_the_best_of_equal_ones_is_the_earliest() -> None:
    assert [one.step for one in best_first([measurement(30, 60.0), measurement(20, 60.0), measurement(10, 50.0)])] == [
        20,
        30,
        10,
    ]


def test_the_pointer_names_better_ones_that_are_gone() -> None:
    measured = [measurement(10, 70.0), measurement(20, 60.0), measurement(30, 60.0), measurement(40, 50.0)]

    def pointer(*kept: int) -> tuple[Any, ...]:
        found = state(*measured, snapshot=Snapshot(dict.fromkeys(kept, "1"), (), finished=False)).pointer
        assert found is not None
        return found["step"], found["kept"], found["better_but_gone"]

    assert pointer(30, 40) == (30, True, [10])
    assert pointer() == (10, False, [])
    assert state().pointer is None


def test_checkpoints_that_metrics_promise() -> None:
    lines = [
        {"kind": "epoch", "step": 10, "epoch": 1, "score": 1.0},  # measured, so saved
        {"kind": "epoch", "step": 20, "epoch": 2},
        {"kind": "epoch", "step": 30, "epoch": 3},
        {"kind": "step", "step": 35, "epoch": 3.5},
        {"kind": "epoch", "step": 40, "epoch": 4, "score": 1.0},  # the newest: perhaps it is being written
    ]
    assert Snapshot({40: "1"}, lines, finished=False).saved() == {10}
    assert Snapshot({40: "1"}, lines, finished=False, save_epochs=2).saved() == {10, 20}
    assert Snapshot({}, lines, finished=False, save_epochs=1).saved() == set()


def test_steps_in_words() -> None:
    assert steps_in_words([4]) == "step 4"
    assert steps_in_words([4, 8]) == "steps 4, 8"
    assert steps_in_words(range(15), 3) == "steps 0, 1, 2 and 12 more"
