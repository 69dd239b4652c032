"""SIGKILL, as of a job system or for want of memory: at every change of the run folder, within a write, at any time."""

import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.faults.runs import GONE, assert_equal, check_whole, kill, kill_group, run, start


@pytest.mark.usefixtures("full_end")  # which changes the folder too
@pytest.mark.parametrize(
    ("begun", "stride"),
    [(True, 6), *(pytest.param(begun, 1, marks=pytest.mark.slow) for begun in (True, False))],
)
def test_killed_at_every_change_of_its_folder(
    images: Path, undisturbed: Path, tmp_path: Path, begun: bool, stride: int
) -> None:
    """The n-th start is killed at its n-th change, from the first changes of a new run or of one that resumes."""
    out, saved, kills = tmp_path / "run", 0, 0
    if begun:
        running = start(images, out, deed="pause_at=5")
        running.until_stopped()
        running.kill_all()
        saved = check_whole(out)
        assert saved == 4
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
    random_kills(images, tmp_path, epochs=8, kills=4, seed=3)


@pytest.mark.slow
def test_a_hundred_random_kills_lose_nothing(images: Path, tmp_path: Path) -> None:
    random_kills(images, tmp_path, epochs=20, kills=100, seed=100)


def random_kills(images: Path, folder: Path, *, epochs: int, kills: int, seed: int) -> None:
    """SIGKILL to a run's whole group or its main process alone, at any time from its start to its end.

    Every fourth is killed within a few seconds of the start of its interpreter, the others after torch was imported. A
    run that has ended before its turn must equal the undisturbed one, and another is begun.
    """
    longer = (f"optim.epochs={epochs}", "efficiency.workers=2")
    began = time.monotonic()
    assert run(images, folder / "undisturbed", *longer).code == 0
    length = time.monotonic() - began
    chance, starts, finished, killed, training, saved = random.Random(seed), 0, 0, 0, 0, 0
    while killed < kills or not finished:
        out = folder / f"run{finished}"
        fresh = killed < kills and starts % 4 == 3
        running = start(images, out, *longer, new_interpreter=fresh)  # its first seconds are imports
        starts += 1
        if killed < kills and running.wait_for(chance.uniform(0, length)) is None:
            (kill_group if chance.random() < 0.5 else kill)(running.pid)
        ended = running.wait()
        if ended.code == 0:
            assert_equal(folder / "undisturbed", out)
            finished, saved = finished + 1, 0
            continue
        assert ended.code == -signal.SIGKILL, ended.said
        running.until_gone(GONE)
        now = check_whole(out)
        assert now >= saved  # what was saved stays
        killed, training, saved = killed + 1, training + (now > saved), now
    print(f"{killed} kills, {training} of them after a new checkpoint; {finished} runs equal")  # noqa: T201


def test_a_folder_copied_elsewhere_resumes(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    running = start(images, tmp_path / "run", deed="pause_at=5")
    running.until_stopped()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")  # as a backup does: the run is in the middle of a step
    running.kill_all()
    assert run(images, tmp_path / "copy").code == 0
    assert_equal(undisturbed, tmp_path / "copy")
