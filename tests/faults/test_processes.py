"""One process of several that dies, hangs, or sees NaN: the others stop in time, it is named, and the run resumes."""

import json
import os
import random
import re
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from excb.checkpoint import run_checkpoint
from excb.distributed.heartbeat import VARIABLE
from excb.distributed.launch import GRACE
from excb.pretrain.__main__ import main
from tests.faults.runs import (
    GONE,
    PATIENCE,
    Running,
    at_step,
    check_whole,
    kill,
    newest,
    ranks,
    start_many,
    start_process,
    state,
    steps,
)
from tests.forked import launch
from tests.pretrain.test_parallel import FILES, NETWORK, STEPS, assert_same_run, images, one_thread_each, undisturbed
from tests.pretrain.test_parallel import command as quiet_command

__all__ = ["images", "one_thread_each", "undisturbed"]  # fixtures
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
LONG = ("optim.epochs=60", "run.save_epochs=1", "monitor.every_epochs=20")


def command(images: Path, out: Path, *overrides: str) -> list[str]:
    """A run's command line, in float64: any number of processes gives the same to 1e-9."""
    arguments = quiet_command(images, out, *NETWORK, *FILES, *overrides)
    return [argument for argument in arguments if argument != "--quiet"]


def begin(images: Path, out: Path, processes: int = 2, *overrides: str, deed: str = "") -> Running:
    """Start a run of several processes."""
    return start_many(processes, command(images, out, *overrides), out, deed=deed)


def stopped(running: Running) -> list[int]:
    """The processes of a launcher that have stopped themselves, in order."""
    return [process for process in ranks(running.pid) if state(process) == "T"]


def samples(folder: Path, processes: int) -> dict[int, list[int]]:
    """Step -> what all processes saw of its batch, in the order of their numbers."""
    seen: dict[int, list[int]] = {}
    for number in range(processes):
        for line in (folder / f"samples.{number}").read_text().splitlines():
            step, scheduled, used = json.loads(line)
            assert scheduled == used
            seen.setdefault(step, []).extend(scheduled)
    return seen


@pytest.mark.usefixtures("full_end")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_another_number_of_processes_keeps_the_order_and_says_what_is_lost(
    images: Path, undisturbed: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """One process, then two, then three: the samples of every step in the same order, the weights equal to 1e-9.

    Other tests go on from two processes with one.
    """
    out, seen = tmp_path / "run", dict[int, list[int]]()
    for processes, step in ((1, 4), (2, 10), (3, STEPS)):
        folder = tmp_path / str(processes)
        folder.mkdir()
        running = begin(images, out, processes, deed=f"record={folder / 'samples'}")
        if processes < 3:
            running.until(at_step(out, step))
            running.send(number)
        ended = running.wait()
        assert ended.code == (128 + number if processes < 3 else 0), ended.said
        part = samples(folder, processes)
        assert not part.keys() & seen.keys()  # a stop by signal loses no step
        seen |= part
        note = {1: "", 2: "so far processes 1, now 2", 3: "so far processes 2, now 3"}[processes]
        assert note in ended.said
        assert ("so far processes" in ended.said) == bool(note)
        if note:
            assert "images keep their order, but sums are rounded differently" in ended.said
    assert seen == samples(undisturbed.parent, 1)
    assert_same_run(undisturbed, out)


def test_a_signal_to_all_processes_at_once_is_one_request(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = begin(images, out)
    running.until(at_step(out, 3))
    for each in (*ranks(running.pid), running.pid):
        os.kill(each, signal.SIGTERM)
    ended = running.wait()
    assert ended.code == 128 + signal.SIGTERM, ended.said
    assert newest(out) == steps(out)[-1]
    assert main(command(images, out)) == 0
    assert_same_run(undisturbed, out)


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_process_that_is_killed_is_named(images: Path, undisturbed: Path, tmp_path: Path, victim: int) -> None:
    out = tmp_path / "run"
    running = begin(images, out)
    running.until(at_step(out, 4))
    kill(ranks(running.pid)[victim])
    killed = time.monotonic()
    ended = running.wait()
    assert time.monotonic() - killed < GRACE + 5
    assert ended.code == 2
    assert f"process {victim} of 2 was killed by SIGKILL, and the others were stopped" in ended.error
    running.until_gone(GONE)
    assert main(command(images, out)) == 0
    assert_same_run(undisturbed, out)


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_process_that_hangs_is_named(
    images: Path, undisturbed: Path, tmp_path: Path, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP: it is there, its connections are open, and it does nothing."""
    monkeypatch.setenv(VARIABLE, "5")
    out = tmp_path / "run"
    running = begin(images, out)
    running.until(at_step(out, 4))
    os.kill(ranks(running.pid)[victim], signal.SIGSTOP)
    stopped = time.monotonic()
    ended = running.wait()
    assert time.monotonic() - stopped < 5 * 1.2 + GRACE + 5
    assert ended.code == 2
    assert f"process {victim} of 2 sent no heartbeat for 5 seconds" in ended.error
    running.until_gone(GONE)
    assert check_whole(out) >= 2
    assert main(command(images, out)) == 0
    assert_same_run(undisturbed, out)


@pytest.mark.slow
def test_processes_that_are_suspended_together_go_on(
    images: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a batch system suspends a job: for longer than a process may hang."""
    monkeypatch.setenv(VARIABLE, "2")
    out = tmp_path / "run"
    running = begin(images, out, deed="pause_at=5")
    running.until(lambda: len(stopped(running)) == 2)
    assert running.wait_for(4) is None
    for process in stopped(running):
        os.kill(process, signal.SIGCONT)
    ended = running.wait()
    assert ended.code == 0, ended.said
    assert_same_run(undisturbed, out)


def test_processes_whose_launcher_is_killed_save_and_leave(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = begin(images, out)
    running.until(at_step(out, 4))
    running.send(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    running.until_gone(GONE)
    assert newest(out) == steps(out)[-1]
    assert main(command(images, out)) == 0
    assert_same_run(undisturbed, out)


@pytest.mark.slow
def test_processes_whose_launcher_is_killed_while_they_start_leave(images: Path, tmp_path: Path) -> None:
    running = begin(images, tmp_path / "run")
    running.until(lambda: len(ranks(running.pid)) == 2)
    running.send(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    running.until_gone(PATIENCE)  # they import torch first


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_processes_whose_agent_of_torchrun_is_killed_save_and_leave(
    images: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """SIGKILL, as when memory runs out: the agent cannot tell its processes, and sets no variable of ours."""
    out = tmp_path / "run"
    running = start_process([*TORCHRUN, "-m", "excb.pretrain", *command(images, out)], out)
    running.until(at_step(out, 4))
    running.send(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    running.until_gone(GONE)
    # The other rank may see it first, and end the run for both.
    assert re.search(
        rf"the launcher \(process {running.pid}\) is gone: the run (saves and )?stops", running.wait().said
    )
    assert 4 <= newest(out) == steps(out)[-1] < STEPS
    assert main(command(images, out)) == 0
    assert_same_run(undisturbed, out)


@pytest.mark.slow
def test_processes_whose_agent_of_torchrun_is_killed_while_they_start_leave(images: Path, tmp_path: Path) -> None:
    arguments = [*TORCHRUN, "-m", "excb.pretrain", *command(images, tmp_path / "run")]
    # New interpreters, which import torch.
    running = start_process(arguments, tmp_path / "run", new_interpreter=True)
    running.until(lambda: len(ranks(running.pid)) == 2)
    time.sleep(1)  # they import torch now
    running.send(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    running.until_gone(GONE)


def test_nan_in_one_process_stops_all(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    """Step 5 sees the images from place 24 of its epoch on, process 1 those from 30 on."""
    out = tmp_path / "run"
    ended = begin(images, out, deed="not_finite=5,30,1").wait()
    assert ended.code == 2
    assert "stopped at step 5" in ended.error
    assert "the loss is nan" in ended.error
    assert check_whole(out) == 4
    assert run_checkpoint.read_run_checkpoint(out / "diverged" / "step-5.pt")["step"] == 5
    assert launch("excb.pretrain", command(images, out), 2) == 0
    alarm = out / "metrics.jsonl"  # it stays on record; all other lines are those of an undisturbed run
    alarm.write_text("".join(line for line in alarm.read_text().splitlines(keepends=True) if "not finite" not in line))
    assert_same_run(undisturbed, out)


@pytest.mark.slow
def test_a_disk_that_is_full_for_process_0_stops_all(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = begin(images, out, deed="pause_at=5")
    running.until(lambda: len(stopped(running)) == 2)
    both = stopped(running)
    size = (out / "metrics.jsonl").stat().st_size + 9
    resource.prlimit(both[0], resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    for process in both:
        os.kill(process, signal.SIGCONT)
    ended = running.wait()
    assert ended.code == 2
    assert f"cannot write {out / 'metrics.jsonl'}" in ended.error
    running.until_gone(GONE)
    assert check_whole(out) == 4
    assert main(command(images, out)) == 0
    assert_same_run(undisturbed, out)


@pytest.mark.slow
def test_a_data_worker_killed_in_one_process_stops_all(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = begin(images, out, deed="worker_killed=20").wait()
    assert ended.code == 2
    assert "a process that reads images was killed by SIGKILL" in ended.error
    assert ended.error.endswith("repeat the command to resume")
    check_whole(out)
    assert main(command(images, out)) == 0
    assert_same_run(undisturbed, out)


@pytest.mark.slow
def test_twenty_kills_leave_no_trace(images: Path, tmp_path: Path) -> None:
    """kill -9 at random moments, by turns: everything, one process of two, process 0 while it writes a checkpoint."""
    assert main(command(images, tmp_path / "undisturbed", *LONG)) == 0
    chance, out, kills, saved = random.Random(11), tmp_path / "run0", 0, 0
    while kills < 20:
        running = begin(images, out, 2, *LONG)
        kind, writing = kills % 3, out / "checkpoints"
        # From the start of the processes on: also while they import, join, resume, measure or save.
        moment = time.monotonic() + chance.uniform(1, 14)
        while running.wait_for(0.001) is None:
            if any(writing.glob(".*.tmp")) if kind == 2 else time.monotonic() > moment:
                break
        victims = ranks(running.pid)
        if running.wait_for(0) is not None or not victims:
            assert running.wait().code == 0
            assert_same_run(tmp_path / "undisturbed", out, steps=180)
            out, saved = tmp_path / f"run{kills}", 0  # finished before the next kill: another run
            continue
        for victim in {0: [running.pid, *victims], 1: [chance.choice(victims)], 2: victims[:1]}[kind]:
            kill(victim)
        running.wait()
        running.until_gone(GONE)
        kills += 1
        now = check_whole(out)
        assert now >= saved  # what was saved stays
        saved = now
    assert launch("excb.pretrain", command(images, out, *LONG), 2) == 0
    assert_same_run(tmp_path / "undisturbed", out, steps=180)
