"""Small runs to be hurt: started as a user starts them, watched from outside, and compared with an undisturbed one."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from excb.checkpoint import run_checkpoint
from excb.files.run_files import read_metrics
from tests.pretrain.small_runs import OVERRIDES, assert_same

PATIENCE = 120.0  # seconds for whatever a test waits for, on a busy machine
GONE = 15.0  # seconds in which all processes of a run whose main process was killed have ended
POLL = 0.01  # seconds between looks
STEPS = 12  # 27 images, batches of 8, 4 epochs
SAVED = ("optim.epochs=4", "run.save_steps=2", "run.keep=3")
MARK = "EXCB_TEST_MARK"  # environment variable: names all processes of one command

# A process that has imported all of it, and from which runs are forked: they start in no time.
_READY = multiprocessing.get_context("forkserver")
_READY.set_forkserver_preload(
    ["tests.faults.deeds", "excb.pretrain.loop", "excb.pretrain.figures.curves", "excb.images.shards"]
)


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
    """A run in the background.

    Args:
        pid: its first process.
        log: the file of all that it says.
        wait: waits so many seconds, and gives the exit code, or None.
        mark: in the environment of all its processes, where it has one of its own.
    """

    def __init__(self, pid: int, log: Path, wait: Callable[[float], int | None], mark: str | None = None) -> None:
        self.pid, self._log, self._wait, self._mark = pid, log, wait, mark
        STARTED.append(self)

    def wait(self, seconds: float = PATIENCE) -> Ended:
        """Wait for the end; whatever is left of the run after so many seconds is killed, and the test fails."""
        code = self._wait(seconds)
        if code is None:
            self.kill_all()
            raise AssertionError(f"the run did not end in {seconds:g} s: {self._log.read_text()}")
        return Ended(code, self._log.read_text())

    def wait_for(self, seconds: float) -> int | None:
        """The exit code, or None where it still runs after so many seconds."""
        return self._wait(seconds)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the first process."""
        os.kill(self.pid, number)

    def alive(self) -> list[int]:
        """All processes of the run that have not ended: those of its session, or with its mark."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                state, *numbers = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                marked = self._mark is not None and self._mark.encode() in (folder / "environ").read_bytes()
            except OSError:
                continue  # it has just ended
            if state != "Z" and (marked or int(numbers[2]) == self.pid):
                found.append(int(folder.name))
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
        self._wait(GONE)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; the test fails where the run ends before or it takes too long."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            code = self._wait(POLL)
            assert code is None, f"ended with {code}: {self._log.read_text()}"
            if time.monotonic() > deadline:
                self.kill_all()
                raise AssertionError(f"waited in vain: {self._log.read_text()}")

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


def _run(arguments: Sequence[str], log: Path, deed: str) -> None:
    """In a forked process: become a command."""
    from excb.pretrain.__main__ import main
    from tests.faults.deeds import do

    multiprocessing.set_start_method("fork", force=True)  # of data workers, as in any other program
    os.setsid()
    with log.open("wb") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
    if deed:
        do(deed, list(arguments))
    sys.exit(main(arguments))


def start(images: Path, out: Path, *overrides: str, deed: str = "") -> Running:
    """Start `excb-pretrain` on small images, forked from a process that has imported torch."""
    log = _log(out)
    process = _READY.Process(target=_run, args=(command(images, out, *overrides), log, deed))
    process.start()
    assert process.pid is not None

    def wait(seconds: float) -> int | None:
        process.join(seconds)
        return process.exitcode

    return Running(process.pid, log, wait)


def run(images: Path, out: Path, *overrides: str, deed: str = "") -> Ended:
    """`start`, and wait for the end."""
    return start(images, out, *overrides, deed=deed).wait()


def start_process(arguments: Sequence[str], out: Path) -> Running:
    """Start a program in a new interpreter, as a shell does."""
    log, mark = _log(out), uuid.uuid4().hex
    with log.open("wb") as stream:
        process = subprocess.Popen(
            arguments, env=os.environ | {MARK: mark}, stdout=stream, stderr=stream, start_new_session=True
        )

    def wait(seconds: float) -> int | None:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    return Running(process.pid, log, wait, mark)


def start_program(images: Path, out: Path, *overrides: str, deed: str = "") -> Running:
    """`start` as a shell does, importing and all."""
    module = ["tests.faults.deeds", deed] if deed else ["excb.pretrain"]
    return start_process([sys.executable, "-m", *module, *command(images, out, *overrides)], out)


def _log(out: Path) -> Path:
    """A new file, there before the run is: one that is killed at once has said nothing."""
    log = out.parent / f"{out.name}.{uuid.uuid4().hex}.log"
    log.touch()
    return log


# ---------------------------------------------------------------------------------------------------------------------
# Several processes
# ---------------------------------------------------------------------------------------------------------------------

# What `--gpus N` does, without the GPUs.
_LAUNCH = "import sys; from excb.errors import run; from excb.distributed.launch import launch; "
_LAUNCH += "sys.exit(run('excb-pretrain', lambda: launch(sys.argv[2], sys.argv[3:], int(sys.argv[1]))))"


def start_many(processes: int, arguments: Sequence[str], out: Path, *, deed: str = "") -> Running:
    """Start a run of several processes on this machine, given its command line."""
    module = ["tests.faults.deeds", deed] if deed else ["excb.pretrain"]
    return start_process([sys.executable, "-c", _LAUNCH, str(processes), *module, *arguments], out)


def ranks(launcher: int) -> list[int]:
    """The processes that a launcher started, by their number in the run."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == launcher:
                variables = dict(
                    item.split("=", 1) for item in (folder / "environ").read_text().split("\0") if "=" in item
                )
                found[int(variables["RANK"])] = int(folder.name)
        except (OSError, KeyError):
            continue
    return [found[number] for number in sorted(found)]


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
    assert_same(first, second, "checkpoint", but=("seconds", "recipe"))
    if lines:
        assert figures(undisturbed) == figures(out)
    assert not list((out / "checkpoints").glob(".*")), "something half-written was left"
