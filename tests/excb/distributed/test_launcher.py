"""The launcher of a rank: its environment variables, and what its death does to those it started."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from excb.distributed import launcher, parallel
from excb.distributed.heartbeat import hang_seconds
from excb.distributed.launcher import LOST, check_environment, whole_number
from excb.distributed.parallel import joined
from excb.distributed.workers import worker_count
from excb.errors import UserError, is_rank0
from excb.pretrain.__main__ import main

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# A rank that says which process it is, waits for a line, and says that it is still there.
RANK = """
import os, sys
from excb.distributed import launcher
launcher.POLL, launcher.SAVING = 0.02, 0.1
if "saving" in sys.argv:
    launcher.saves.set()
with launcher.ending_with_launcher("test"):
    print(os.getpid(), flush=True)
    if "saving" in sys.argv:
        launcher.gone.wait()
        print("saves", flush=True)
    sys.stdin.readline()
    print("alive", flush=True)
"""
# A rank that exits when its input ends, long before it looks at its launcher.
EXITS = """
import sys
from excb.distributed import launcher
launcher._watch = lambda program, chain, done: done.wait()
with launcher.ending_with_launcher("test"):
    print("started", flush=True)
    sys.stdin.read()
    launcher.exit_at_once(0)
"""
# A launcher that starts a command with more in its environment, and waits for it.
LAUNCHER = """
import os, subprocess, sys
subprocess.run(sys.argv[2:], env=os.environ | dict(item.split("=") for item in sys.argv[1].split()))
"""


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def after_the_death(command: Sequence[str], line: str = "") -> str:
    """The message of a rank after its parent process was killed. Its input stays open: only the death may end it.

    Args:
        command: starts the rank and waits for it.
        line: for the rank, which then says that it is alive.
    """
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert int(process.stdout.readline()) != process.pid
        process.kill()
        process.wait()
        process.stdin.write(line)
        process.stdin.flush()
        return process.stdout.read()


def launched(variables: str, *command: str) -> list[str]:
    # New interpreters, without torch: /proc shows only the variables that one was started with.
    return [sys.executable, "-c", LAUNCHER, variables, *command]


HERE = (sys.executable, "-c", RANK)
ALL = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1"


@needs_proc
@pytest.mark.parametrize("variables", ["RANK=0 WORLD_SIZE=2", ALL])
def test_a_rank_ends_with_its_launcher_whatever_that_is(variables: str) -> None:
    """Nothing but the two variables that make a rank is known of the launcher."""
    assert after_the_death(launched(variables, *HERE)) == ""


@needs_proc
def test_a_rank_that_saves_is_given_time_to() -> None:
    assert after_the_death(launched(ALL, *HERE, "saving")) == "saves\n"


@needs_proc
def test_a_rank_that_exits_before_it_looks_reports_its_launcher(tmp_path: Path) -> None:
    """Another rank saw it first, and ended the run for all."""
    # New interpreters, as in `launched`.
    with (
        (tmp_path / "said").open("w+") as said,
        subprocess.Popen(
            launched(ALL, sys.executable, "-c", EXITS),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.kill()
        process.wait()
        process.stdin.close()
        assert process.stdout.read() == ""  # the rank has ended
        said.seek(0)
        assert said.read() == f"test: the launcher (process {process.pid}) is gone: the run stops\n"


@needs_proc
def test_a_launcher_that_died_before_its_rank_could_look() -> None:
    """The rank's parent is another process by then."""
    command = launched(f"{ALL} EXCB_LAUNCHER={2**22 + 1}", *HERE)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "alive" not in process.stdout.read()  # its input stays open: it would wait


@pytest.mark.parametrize("text", ["abc", "", "-1", "9" * 5000])
def test_our_own_variable_is_no_number(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXCB_LAUNCHER", text)
    assert main(["list"]) == 0  # no rank: nothing of it is read
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert main(["list"]) == 2
    assert "EXCB_LAUNCHER is" in capsys.readouterr().err


@needs_proc
def test_a_script_around_a_rank_hides_no_launcher() -> None:
    """As with `torchrun --no-python script.sh`: the script is not killed, and lives on."""
    assert after_the_death(launched(ALL, "bash", "-c", '"$@"; exit $?', "script", *HERE)) == ""


@needs_proc
@pytest.mark.parametrize("variables", ["LOCAL_RANK=0", "RANK=0"])
def test_what_is_no_rank_outlives_whoever_started_it(variables: str) -> None:
    assert after_the_death(launched(variables, *HERE), "\n") == "alive\n"


@needs_proc
def test_a_rank_that_a_shell_started_in_the_background_outlives_it() -> None:
    """As on machines where each rank is started by hand, with nohup."""
    text = 'exec 3<&0; RANK=0 WORLD_SIZE=2 nohup "$@" <&3 & wait'
    assert after_the_death(["bash", "-c", text, "shell", *HERE], "\n") == "alive\n"


@needs_proc
def test_the_chain_leads_past_what_runs_around_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes 30 (ours), 20 (a script around the rank) and 10 (the launcher), by name."""
    shown = {
        (20, "environ"): "RANK=1\0WORLD_SIZE=2\0",
        (20, "stat"): "20 (a) (b) S 10 1 1",
        (10, "environ"): "RANK=0\0WORLD_SIZE=2\0",
        (10, "comm"): "python\n",
    }
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(launcher, "_shown", lambda process, name: shown.get((process, name), ""))
    monkeypatch.setattr(os, "getppid", lambda: 20)
    assert launcher._chain() == [os.getpid(), 20, 10]
    assert launcher._is_whole([os.getpid(), 20, 10])
    shown[20, "stat"] = "20 (a) (b) S 1 1 1"  # the launcher died
    assert not launcher._is_whole([os.getpid(), 20, 10])
    shown[10, "comm"] = "bash\n"
    shown[20, "stat"] = "20 (a) (b) S 10 1 1"
    assert launcher._chain() == []
    monkeypatch.setattr(os, "getppid", lambda: 0)  # the first process of a container
    assert launcher._chain() == []


def test_the_exit_code_is_that_of_a_lost_process(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(launcher, "gone", threading.Event())
    monkeypatch.setattr(launcher, "_is_whole", lambda _chain: False)
    monkeypatch.setattr(launcher.saves, "is_set", lambda: False)
    launcher._watch("test", [1, 2], threading.Event())
    assert codes == [LOST]
    assert launcher.gone.is_set()


# ---------------------------------------------------------------------------------------------------------------------
# Variables
# ---------------------------------------------------------------------------------------------------------------------

HOSTILE = ("x", "", " 1", "1.0", "-1", "+1", "\u0661", "1e3", "9" * 5000, "0x1", "1\n")


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("variable", ["LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE", "MASTER_PORT"])
def test_a_variable_that_is_no_number_is_one_line(variable: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"} | {variable: text}).items():
        monkeypatch.setenv(name, value)
    if variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(UserError, match=f"{variable} is .* no whole number") as error, joined("cpu"):
        pass
    assert not error.value.already_reported


@pytest.mark.parametrize(("number", "size"), [("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")])
def test_a_rank_beyond_the_number_of_ranks_is_one_line(number: str, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(number, "2")
    monkeypatch.setenv(size, "2")
    with pytest.raises(UserError, match=f"{number} is 2, but {size} is 2"):
        check_environment()


def test_the_size_that_a_plain_process_reads_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("x", "0", "-4"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", text)
        with pytest.raises(UserError, match="LOCAL_WORLD_SIZE is"):
            worker_count(-1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert whole_number("LOCAL_WORLD_SIZE", 7) == 1
    assert whole_number("LOCAL_RANK", 7) == 7


@pytest.mark.parametrize("text", ["x", "-1", "nan", "inf", "1e300", "9" * 5000])
def test_a_time_that_no_clock_can_wait_is_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCB_HANG_SECONDS", text)
    with pytest.raises(UserError, match="EXCB_HANG_SECONDS"):
        hang_seconds()


def test_a_rank_without_a_group_reports_its_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A variable that some other program left there makes a plain process no silent one."""
    monkeypatch.setenv("RANK", "3")
    assert is_rank0()
    assert main(["quickstart", "optim.no=1"]) == 2
    assert "error: " in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert not is_rank0()


def test_ranks_that_live_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(launcher, "POLL", 0.001)
    monkeypatch.setattr(os, "_exit", lambda code: signal.raise_signal(signal.SIGKILL))
    with launcher.ending_with_launcher("test"):
        for _ in range(50):
            os.sched_yield()


def test_a_launcher_that_died_before_this_process_looked_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    monkeypatch.setattr(launcher, "_PARENT", ended.pid)
    monkeypatch.setattr(launcher, "_PARENT_NAME", "torchrun")
    monkeypatch.setattr(launcher, "POLL", 0.01)
    monkeypatch.setattr(launcher, "gone", threading.Event())
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    for name in launcher.GROUP:
        monkeypatch.setenv(name, "0")
    with launcher.ending_with_launcher("program"):
        assert launcher.gone.wait(10)
    assert codes == [launcher.LOST]


def test_a_port_that_is_taken_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*launcher.GROUP, "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        with pytest.raises(UserError, match=r"port \d+ of this machine is taken.* set MASTER_PORT"), joined("cpu"):
            raise AssertionError("it has joined")


def test_a_store_that_nobody_keeps_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "STORE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        parallel._check_store("127.0.0.1", port)
    with pytest.raises(UserError, match=r"the launcher does not answer at 127\.0\.0\.1:.* it has ended, start again"):
        parallel._check_store("127.0.0.1", port)
