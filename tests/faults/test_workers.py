"""Data workers that are killed, fail, or lose the process that they read for: one line, no step lost, none left."""

import os
import signal
import time
from pathlib import Path

import pytest

from excb.distributed.workers import PATIENCE
from tests.faults.runs import GONE, Running, assert_equal, check_whole, run, start, state, steps

TWO = "efficiency.workers=2"


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("worker_killed=20", "was killed by SIGKILL, most often because memory ran out: lower efficiency.workers"),
        ("worker_fails=20", "failed (ZeroDivisionError: a decoder's fault); efficiency.workers=0 shows where"),
    ],
)
def test_a_lost_worker_is_one_line_and_no_step_is_lost(
    images: Path, undisturbed: Path, tmp_path: Path, deed: str, words: str
) -> None:
    out = tmp_path / "run"
    running = start(images, out, TWO, "run.save_steps=none", deed=f"pause_at=0;{deed}")
    running.until_stopped()
    running.send(signal.SIGCONT)
    ended = running.wait()
    assert ended.code == 2, ended.said
    assert f"a process that reads images {words}" in ended.error
    trained = steps(out)
    assert ended.error.endswith(f"step {len(trained)} is saved: repeat the command to resume")
    assert check_whole(out) == len(trained)
    running.until_gone(GONE)
    assert run(images, out).code == 0
    assert_equal(undisturbed, out)


def test_a_worker_killed_while_a_step_runs(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    """The step is finished and saved: the loss is reported when the next batch is due."""
    out = tmp_path / "run"
    running = start(images, out, TWO, "efficiency.prefetch=1", deed="pause_at=4")
    running.until_stopped()
    victim = next(process for process in running.alive() if process != running.pid)
    os.kill(victim, signal.SIGKILL)
    running.send(signal.SIGCONT)
    ended = running.wait()
    assert ended.code == 2, ended.said
    assert "was killed by SIGKILL" in ended.error
    assert check_whole(out) == len(steps(out)) >= 5
    assert run(images, out).code == 0
    assert_equal(undisturbed, out)


def start_with_workers_that_hang(images: Path, out: Path) -> tuple[Running, list[int]]:
    """A run that has stopped before its fifth step, and its two data workers, stopped as well."""
    running = start(images, out, TWO, deed="pause_at=4")
    running.until_stopped()
    workers = [process for process in running.alive() if process != running.pid]
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    return running, workers


def test_a_worker_that_hangs_does_not_keep_a_run_that_was_asked_to_stop(
    images: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    running, _ = start_with_workers_that_hang(images, out)
    running.send(signal.SIGTERM)
    running.send(signal.SIGCONT)
    asked = time.monotonic()
    assert running.wait().code == 128 + signal.SIGTERM
    assert time.monotonic() - asked < PATIENCE + GONE
    running.until_gone(GONE)
    assert check_whole(out) == 5
    assert run(images, out).code == 0
    assert_equal(undisturbed, out)


@pytest.mark.parametrize("worker", [0, 1])
def test_workers_do_not_outlive_a_run_that_is_killed_while_they_start(
    images: Path, tmp_path: Path, worker: int
) -> None:
    running = start(images, tmp_path / "run", TWO, deed=f"orphan={worker}")
    assert running.wait().code == -signal.SIGKILL
    running.until_gone(GONE)


def test_a_worker_that_outlives_its_run_does_not_hold_the_folder(
    images: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    running, workers = start_with_workers_that_hang(images, out)
    running.send(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    assert run(images, out, TWO).code == 0
    assert sorted(running.alive()) == sorted(workers)
    assert_equal(undisturbed, out)


def test_workers_do_not_outlive_a_run_that_is_killed(images: Path, tmp_path: Path) -> None:
    running = start(images, tmp_path / "run", TWO, deed="pause_at=4")
    running.until_stopped()
    assert len(running.alive()) == 3
    running.send(signal.SIGKILL)
    running.until_gone(GONE)
    assert state(running.pid) in "XZ"
