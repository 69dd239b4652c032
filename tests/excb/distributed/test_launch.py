"""The launcher, with processes that do nothing but end in all the ways that processes end."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from excb.distributed import launcher, signals
from excb.distributed.launch import GRACE, launch, open_store
from excb.distributed.signals import StopRequest
from excb.errors import UserError

PROGRAM = """
import os, signal, sys, time
rank, folder = int(os.environ["RANK"]), sys.argv[2]
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
signal.signal(signal.SIGINT, lambda *_: asked.append(1))
open(os.path.join(folder, f"started{rank}"), "w").close()
def wait(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not asked:
        time.sleep(0.02)
exec(sys.argv[1].split("|")[rank])
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module whose first argument says what each process does."""
    (tmp_path / "pretend.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "pretend"


def background(deeds: str, folder: Path) -> subprocess.Popen[str]:
    """Launch in a new interpreter, as the launcher is what is tested, and wait until its processes have started."""
    text = "import sys; from excb.errors import run_program; from excb.distributed import launch; launch.GRACE = 1.0; "
    text += "sys.exit(run_program('test', lambda: launch.launch('pretend', sys.argv[1:], sys.argv[1].count('|') + 1)))"
    process = subprocess.Popen([sys.executable, "-c", text, deeds, str(folder)], stderr=subprocess.PIPE, text=True)
    while sum(1 for _ in folder.glob("started*")) < deeds.count("|") + 1:
        assert process.poll() is None
        os.sched_yield()
    return process


@pytest.mark.parametrize("code", [0, 2, 130])
def test_an_exit_code_that_all_share_is_handed_on(program: str, tmp_path: Path, code: int) -> None:
    assert launch(program, [f"sys.exit({code})|sys.exit({code})", str(tmp_path)], 2) == code


@pytest.mark.parametrize(
    ("deeds", "words"),
    [
        ("wait(60)|sys.exit(3)", "process 1 of 2 ended with exit code 3"),
        ("wait(60)|os.kill(os.getpid(), 9)|wait(60)", "process 1 of 3 was killed by SIGKILL"),
        (
            "sys.exit(75)|time.sleep(0.5); sys.exit(1)",
            "process 1 of 2 ended with exit code 1",
        ),  # 75: lost the other
        ("time.sleep(0.5); os.abort()|sys.exit(4)", "process 1 of 2 ended with exit code 4"),  # the first to fail
    ],
)
def test_the_process_that_failed_first_is_named(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deeds: str, words: str
) -> None:
    if deeds.count("wait(60)"):  # nobody else fails, so nothing depends on how long the launcher waits
        monkeypatch.setattr("excb.distributed.launch.GRACE", 1.0)
    start = time.monotonic()
    with pytest.raises(UserError, match=words):
        launch(program, [deeds, str(tmp_path)], deeds.count("|") + 1)
    assert time.monotonic() - start < GRACE + 30  # on a busy machine, and far from the minute that they would sleep


def test_a_users_mistake_has_been_told_by_the_process(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("excb.distributed.launch.GRACE", 1.0)
    assert launch(program, ["wait(60)|sys.exit(2)", str(tmp_path)], 2) == 2


def test_a_failure_after_a_signal_stops_the_others_too(program: str, tmp_path: Path) -> None:
    process = background("wait(60); time.sleep(60)|wait(60); sys.exit(9)", tmp_path)
    process.send_signal(signal.SIGTERM)
    start = time.monotonic()
    process.communicate()
    assert time.monotonic() - start < GRACE + 30  # on a busy machine, and far from the minute that they would sleep
    assert process.returncode == 143


def test_a_second_signal_ends_processes_that_do_not_listen(program: str, tmp_path: Path) -> None:
    process = background("time.sleep(60); time.sleep(60)|time.sleep(60); time.sleep(60)", tmp_path)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=signals.ONE_REQUEST + 0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_our_launcher_needs_no_port_that_is_taken(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(taken))  # left over from a run under torchrun
        deed = f"sys.exit(int(os.environ['MASTER_PORT']) == {taken})"
        assert launch(program, [f"{deed}|{deed}", str(tmp_path)], 2) == 0
        with pytest.raises(UserError, match=rf"^cannot open port {taken} of 127.0.0.1 \(.*in use\): submit again$"):
            open_store("127.0.0.1", taken, advice="submit again")


def test_a_machine_without_a_free_port_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise dist.DistNetworkError("no port is free\nframe #0")

    monkeypatch.setattr(dist, "TCPStore", none_left)
    with pytest.raises(UserError, match=r"^cannot open a port of 127.0.0.1 \(no port is free\): start again$"):
        launch("pretend", [], 2)


# ---------------------------------------------------------------------------------------------------------------------
# Requests to stop
# ---------------------------------------------------------------------------------------------------------------------


def test_a_signal_while_waiting_for_the_others_counts_when_all_know(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    with StopRequest() as stop:

        def gather(numbers: list[int]) -> torch.Tensor:
            signal.raise_signal(signal.SIGTERM)
            return torch.tensor([numbers, [0]])

        monkeypatch.setattr(signals, "gather_numbers", gather)
        assert not stop.agreed()
        monkeypatch.setattr(signals, "gather_numbers", lambda numbers: torch.tensor([numbers, [0]]))
        assert stop.agreed()
        assert stop.exit_code == 143


def test_all_processes_leave_with_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(signals, "gather_numbers", lambda numbers: torch.tensor([numbers, [signal.SIGTERM]]))
        assert stop.agreed()
    assert stop.exit_code == 143


def test_repeats_within_a_moment_are_one_request() -> None:
    with StopRequest() as stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)  # a second one would leave this process at once
        assert stop.count == 1


def test_a_second_request_interrupts_where_the_process_must_live_on(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(signals, "ONE_REQUEST", 0.0)
    with StopRequest(second="interrupt"):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_process_whose_launcher_is_gone_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "gone", threading.Event())
    with StopRequest() as stop:
        assert not stop.agreed()
        launcher.gone.set()
        assert stop.agreed()
        assert stop.exit_code == 128 + signal.SIGTERM


# ---------------------------------------------------------------------------------------------------------------------
# The end of a script that stays in its group
# ---------------------------------------------------------------------------------------------------------------------

STAYS = """
import atexit, os, sys
def threads():
    return sorted(open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task"))
def write():
    open(os.path.join(sys.argv[1], "end" + os.environ["RANK"]), "w").write("".join(threads()))
atexit.register(write)  # runs after what is registered later
from excb.distributed.collectives import gather_numbers
from excb.distributed.parallel import joined
with joined("cpu", stay=True):
    import torch._dynamo
    assert gather_numbers([1]).tolist() == [[1], [1]]
open(os.path.join(sys.argv[1], "joined" + os.environ["RANK"]), "w").write("".join(threads()))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are listed in /proc")
def test_no_thread_of_the_group_outlives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that did aborted the program at its end now and then: the end of a new interpreter."""
    (tmp_path / "stays.py").write_text(STAYS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(launcher.__file__).parents[2]}")
    assert launch("stays", [str(tmp_path)], 2) == 0
    for rank in "01":
        assert "gloo" in (tmp_path / f"joined{rank}").read_text()
        assert "gloo" not in (tmp_path / f"end{rank}").read_text()
