"""SIGKILL, as of a job system or for want of memory: at every change of the run folder, within a write, at any time."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.runs import GONE, Running, assert_equal, at_step, check_whole, kill, run, start, start_program

LONGER = ("optim.epochs=12", "efficiency.workers=2")


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_change_of_its_folder(images: Path, undisturbed: Path, tmp_path: Path, stride: int) -> None:
    """The n-th start is killed just before its n-th change: every place between two changes is a place to die."""
    out, saved, kills = tmp_path / "run", 0, 0
    for number in range(1, 1000, stride):
        ended = run(images, out, deed=f"kill_at_change={number}")
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL, ended.said
        now = check_whole(out)
        assert now >= saved
        saved, kills = now, kills + 1
    assert kills >= 7
    assert_equal(undisturbed, out)


@pytest.mark.parametrize("size", [10_000, 90_000, pytest.param(170_000, marks=pytest.mark.slow), 239_000])
def test_killed_in_the_middle_of_a_checkpoint(images: Path, undisturbed: Path, tmp_path: Path, size: int) -> None:
    out = tmp_path / "run"
    ended = run(images, out, "run.log_steps=100", deed=f"kill_at_byte=5,{size}")
    assert ended.code == -signal.SIGXFSZ, ended.said
    assert [file.stat().st_size for file in (out / "checkpoints").glob(".*.tmp")] == [size]
    assert run(images, out, "run.log_steps=100").code == 0
    # Only steps that were logged have lines: what is compared are the weights and all other state.
    assert_equal(undisturbed, out, lines=False)


def test_killed_at_random_moments(images: Path, tmp_path: Path) -> None:
    random_kills(start, images, tmp_path, kills=4, seed=3)


@pytest.mark.slow
def test_a_hundred_random_kills_lose_nothing(images: Path, tmp_path: Path) -> None:
    random_kills(start_program, images, tmp_path, kills=100, seed=100)


def random_kills(begin: Callable[..., Running], images: Path, folder: Path, *, kills: int, seed: int) -> None:
    """SIGKILL to a run's whole group or its main process alone, at any time from its start to its end.

    A run that ends before its turn must equal the undisturbed one, and another is begun.
    """
    began = time.monotonic()
    assert begin(images, folder / "undisturbed", *LONGER).wait().code == 0
    length = time.monotonic() - began
    chance, number, killed, saved = random.Random(seed), 0, 0, 0
    finished = killed_while_training = 0
    while killed < kills or finished == 0:
        out = folder / f"run{number}"
        running = begin(images, out, *LONGER)
        code = running.wait_for(chance.uniform(0, length)) if killed < kills else running.wait().code
        if code is None:
            killed_while_training += at_step(out, saved + 1)()
            if chance.random() < 0.5:
                os.killpg(running.pid, signal.SIGKILL)
            else:
                kill(running.pid)
            assert running.wait().code == -signal.SIGKILL
            running.until_gone(GONE)
            now = check_whole(out)
            assert now >= saved  # what was saved stays
            saved, killed = now, killed + 1
        else:
            assert code == 0
            assert_equal(folder / "undisturbed", out)
            number, saved, finished = number + 1, 0, finished + 1
    print(f"{killed} kills, {killed_while_training} of them after the first new step; {finished} runs equal")  # noqa: T201


def test_a_folder_copied_elsewhere_goes_on(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    running = start(images, tmp_path / "run", deed="pause_at=5")
    running.until_stopped()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")  # as a backup does: the run is in the middle of a step
    running.kill_all()
    assert run(images, tmp_path / "copy").code == 0
    assert_equal(undisturbed, tmp_path / "copy")
