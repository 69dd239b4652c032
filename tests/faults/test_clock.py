"""A wall clock that is set back, and folders that others hold: neither decides what a run does."""

import signal
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.faults.runs import assert_equal, run, start


def test_a_clock_that_goes_backwards(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    """The second part believes that it ran before the first one."""
    out = tmp_path / "run"
    first = start(images, out, deed="pause_at=5")
    first.until_stopped()
    first.kill_all()
    assert run(images, out, deed="clock_back=3600").code == 0
    assert_equal(undisturbed, out)
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("step/loss")] == list(range(1, 13))


def test_two_runs_in_one_folder(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = start(images, out, deed="pause_at=5")
    first.until_stopped()
    second = run(images, out)
    assert second.code == 2
    assert f"another process is training in {out}" in second.error
    first.send(signal.SIGCONT)
    assert first.wait().code == 0
    assert_equal(undisturbed, out)
