"""Small runs to be hurt: started as a user starts them, watched from outside, and compared with an undisturbed one."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from excb.checkpoint import run_checkpoint
from excb.files.run_files import read_metrics
from tests import forked
from tests.forked import TELLS_STACKS
from tests.pretrain.small_runs import OVERRIDES, assert_same

PATIENCE = 120.0  # seconds for whatever a test waits for, on a busy machine
GONE = 15.0  # seconds in which all processes of a run whose main process was killed have ended
POLL = 0.01  # seconds between looks
STEPS = 12  # 27 images, batches of 8, 4 epochs
SAVED = ("optim.epochs=4", "run.save_steps=2", "run.keep=3")


def command(images: Path, out: Path, *overrides: str) -> list[str]:
    """The command line of a small run, without the program."""
    return ["quickstart", "--data", str(images), "--out", str(out), *OVERRIDES, *SAVED, *overrides]


class Ended(NamedTuple):
    """How a run ended: its exit code, or minus the signal that killed it, and all that it said."""

    code: int
    said: str

    @property
    def error(self) -> str:
        """The one line of error that it said, and nothing but warnings and notes beside it."""
        lines = [line for line in self.said.splitlines() if ": error: " in line]
        assert len(lines) == 1, self.said
        assert "Traceback" not in self.said, self.said
        return lines[0]


STARTED: list["Running"] = []  # by the test that runs


class Running:
    """A program in the background.

    Args:
        process: its first process.
        log: the file that it and all processes that it starts write to: it names them.
    """

    def __init__(self, process: "subprocess.Popen[Any]", log: Path) -> None:
        self.pid, self._process, self._log = process.pid, process, log
        STARTED.append(self)

    def wait(self, seconds: float = PATIENCE) -> Ended:
        """Wait for the end; a run that is there after so many seconds fails the test."""
        code = self.wait_for(seconds)
        if code is None:
            self.fail(f"the run did not end in {seconds:g} s")
        return Ended(code, self._log.read_text())

    def wait_for(self, seconds: float) -> int | None:
        """The exit code, or None where it still runs after so many seconds."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the first process."""
        os.kill(self.pid, number)

    def alive(self) -> list[int]:
        """All processes of the run that have not ended: those whose output is its log."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "fd" / "2").readlink() == self._log and state(int(folder.name)) != "Z":
                    found.append(int(folder.name))
            except OSError:
                continue  # it has just ended
        return found

    def until_gone(self, seconds: float = GONE) -> None:
        """All processes of the run end within so many seconds, or the test fails and they are killed."""
        deadline = time.monotonic() + seconds
        while left := self.alive():
            if time.monotonic() > deadline:
                names = [Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ") for process in left]
                self.kill_all()
                raise AssertionError(f"still there after {seconds:g} s: {names}")
            time.sleep(POLL)

    def kill_all(self) -> None:
        """SIGKILL to all processes; the first one has ended."""
        for process in self.alive():
            kill(process)
        self.wait_for(GONE)

    def fail(self, reason: str) -> NoReturn:
        """Kill a run that hangs, and fail the test with what it said and where each of its threads was."""
        for process in self.alive():
            before, deadline = self._log.stat().st_size, time.monotonic() + 1
            os.kill(process, TELLS_STACKS)
            while self._log.stat().st_size == before and time.monotonic() < deadline:  # a stopped one tells nothing
                time.sleep(POLL)
        self.kill_all()
        raise AssertionError(f"{reason}: {self._log.read_text()}")

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; the test fails where the run ends before or it takes too long."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            code = self.wait_for(POLL)
            assert code is None, f"ended with {code}: {self._log.read_text()}"
            if time.monotonic() > deadline:
                self.fail("waited in vain")

    def until_stopped(self) -> None:
        """Wait until the first process has stopped itself."""
        self.until(lambda: state(self.pid) == "T")


def state(process: int) -> str:
    """The state of a process, as the kernel writes it: R, S, D, T (stopped), Z, or X where there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def kill(process: int) -> None:
    """SIGKILL, if it is still there."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def kill_group(leader: int) -> None:
    """SIGKILL to a run's whole group, or to its first process where that has made none yet."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        kill(leader)


def start_process(arguments: Sequence[str], out: Path, *, new_interpreter: bool = False) -> Running:
    """Start a Python program in a session of its own, as a shell does."""
    log = out.parent / f"{out.name}.{uuid.uuid4().hex}.log"
    with log.open("wb") as stream:
        popen = subprocess.Popen if new_interpreter else forked.Popen
        return Running(popen(arguments, stdout=stream, stderr=stream, start_new_session=True), log.resolve())


def start(images: Path, out: Path, *overrides: str, deed: str = "", new_interpreter: bool = False) -> Running:
    """Start `excb-pretrain` on small images."""
    arguments = [sys.executable, "-m", *_module(deed), *command(images, out, *overrides)]
    return start_process(arguments, out, new_interpreter=new_interpreter)


def run(images: Path, out: Path, *overrides: str, deed: str = "") -> Ended:
    """`start`, and wait for the end."""
    return start(images, out, *overrides, deed=deed).wait()


def _module(deed: str) -> list[str]:
    return ["tests.faults.deeds", deed] if deed else ["excb.pretrain"]


# ---------------------------------------------------------------------------------------------------------------------
# Several processes
# ---------------------------------------------------------------------------------------------------------------------


def start_many(processes: int, arguments: Sequence[str], out: Path, *, deed: str = "") -> Running:
    """Start a run of several processes on this machine, given its command line: as `--gpus N` does, without GPUs."""
    module, *words = _module(deed)
    return start_process(forked.launcher(module, [*words, *arguments], processes), out)


def ranks(launcher: int) -> list[int]:
    """The processes that a launcher started, in the order of their ranks, in which it starts them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parent, session, began = int(fields[1]), int(fields[3]), int(fields[19])
        if parent == launcher and session == int(folder.name):  # its session: no other child of a launcher has one
            found.append((began, session))
    return [process for _, process in sorted(found)]


# ---------------------------------------------------------------------------------------------------------------------
# What a run has left
# ---------------------------------------------------------------------------------------------------------------------


def figures(out: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, each read strictly, without speeds."""
    lines = read_metrics(out)
    return [{name: value for name, value in line.items() if name != "images_per_second"} for line in lines]


def steps(out: Path) -> list[int]:
    """The steps that metrics.jsonl has, in order."""
    return [line["step"] for line in read_metrics(out) if line["kind"] == "step"]


def at_step(out: Path, step: int) -> Callable[[], bool]:
    """Whether a run has written a step's line."""
    return lambda: any(done >= step for done in steps(out))


def newest(out: Path) -> int:
    """The step of the newest checkpoint, 0 where there is none."""
    return max(map(run_checkpoint.step_of, run_checkpoint.in_run(out)), default=0)


def check_whole(out: Path) -> int:
    """Every checkpoint is whole, and every step up to the newest has its line, once; the newest one's step."""
    for file in run_checkpoint.in_run(out):
        assert run_checkpoint.read_run_checkpoint(file)["step"] == run_checkpoint.step_of(file)
    last = newest(out)
    logged = steps(out)
    assert logged[:last] == list(range(1, last + 1)), (last, logged)
    assert logged == list(range(1, len(logged) + 1))
    return last


def assert_equal(undisturbed: Path, out: Path, *, lines: bool = True, data: bool = True) -> None:
    """A run has come to the same end: all of its state to the last bit, and, where wanted, the same lines.

    Args:
        undisturbed: a run folder.
        out: another one.
        lines: metrics.jsonl is compared as well.
        data: the images lay in the same folder.
    """
    first, second = (
        run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(folder)[0]) for folder in (undisturbed, out)
    )
    if not data:
        del first["data"]["root"], second["data"]["root"]
    # Times differ; the recipe holds how images are read and when is saved, which tests vary.
    assert_same(first, second, "checkpoint", but=("seconds", "peak_memory", "recipe"))
    if lines:
        assert figures(undisturbed) == figures(out)
    assert not list((out / "checkpoints").glob(".*")), "something half-written was left"
