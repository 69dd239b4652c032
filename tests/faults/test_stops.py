"""SIGTERM with a deadline, as of a job system: the step ends, the run saves and leaves in time, and loses nothing."""

import random
import signal
import time
from pathlib import Path

import pytest

from excb.distributed.signals import ONE_REQUEST
from tests.faults.runs import assert_equal, at_step, check_whole, newest, run, start, steps

ASK_AGAIN = 128 + signal.SIGTERM  # exit code: saved, the same command resumes
STEP = 1.0  # seconds that a step takes here
LEAVING = 4.0  # seconds to save a small checkpoint and to leave, on a busy machine


def test_a_run_leaves_in_time_and_loses_no_step(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    """Within what is left of its step, and the time that saving takes."""
    out = tmp_path / "run"
    running = start(images, out, "efficiency.workers=2", "run.save_steps=none", deed=f"slow={STEP}")
    running.until(at_step(out, 2))
    running.send(signal.SIGTERM)
    asked = time.monotonic()
    ended = running.wait()
    assert time.monotonic() - asked < STEP + LEAVING
    assert ended.code == ASK_AGAIN, ended.said
    assert running.alive() == []
    assert newest(out) == steps(out)[-1] == 3  # the step under way was finished, and is not lost
    assert "stopped by SIGTERM after step 3: repeat the command to resume" in ended.said
    assert run(images, out).code == 0
    assert_equal(undisturbed, out)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_sigkill_after_the_deadline(images: Path, undisturbed: Path, tmp_path: Path, seed: int) -> None:
    """SIGTERM and, before it could do all that it wants, SIGKILL."""
    out, chance, saved = tmp_path / "run", random.Random(seed), 0
    for step in (2, 5, 8):
        running = start(images, out)
        running.until(at_step(out, step))
        running.send(signal.SIGTERM)
        if running.wait_for(chance.uniform(0, 0.3)) is None:
            running.send(signal.SIGKILL)
        assert running.wait().code in (-signal.SIGKILL, ASK_AGAIN)
        assert check_whole(out) >= saved
        saved = newest(out)
    assert run(images, out).code == 0
    assert_equal(undisturbed, out)


@pytest.mark.usefixtures("full_end")
def test_a_run_that_is_measuring_leaves_too(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    """Figures are measured when the run resumes: in the middle, a second time there, and at the very end."""
    out = tmp_path / "run"
    for passes, step in ((1, 6), (2, 6), (3, 12), (1, 12)):
        running = start(images, out, deed=f"pause_in_measuring={passes}")
        running.until_stopped()
        running.send(signal.SIGTERM)
        running.send(signal.SIGCONT)
        ended = running.wait()
        assert ended.code == ASK_AGAIN, ended.said
        assert newest(out) == step
    assert run(images, out).code == 0
    assert_equal(undisturbed, out)


def test_a_second_request_leaves_at_once(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = start(images, out, "run.save_steps=2", deed="slow=30")
    running.until((out / "metrics.jsonl").is_file)
    running.send(signal.SIGTERM)
    assert running.wait_for(ONE_REQUEST + 0.5) is None
    running.send(signal.SIGTERM)
    asked = time.monotonic()
    assert running.wait().code == ASK_AGAIN
    assert time.monotonic() - asked < LEAVING
    assert run(images, out).code == 0
    assert_equal(undisturbed, out)
