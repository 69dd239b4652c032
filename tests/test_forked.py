"""A forked program is what a new one would be: arguments, environment, folder, streams, signals, exit code, atexit."""

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.clone import ROOT
from tests.faults.runs import start_process

REPORT = """
import atexit, json, os, sys
atexit.register(print, "at exit")
variables = os.environ["OF_OURS"], os.environ.get("HOME")
print(json.dumps([sys.argv, os.getcwd(), variables, __name__]))
print(sys.stdin.read(), file=sys.stderr)
sys.exit(len(sys.argv))
"""


def test_a_forked_program_is_given_what_a_new_one_is(tmp_path: Path) -> None:
    (tmp_path / "report.py").write_text(REPORT)
    environment = {**os.environ, "OF_OURS": "one", "PYTHONPATH": str(tmp_path)}
    del environment["HOME"]
    for start in (["-c", REPORT], ["-m", "report"], ["report.py"]):
        words, folder = [sys.executable, *start, "a", "b c"], tmp_path if start[0][0] != "-" else ROOT
        ends = [
            run(words, env=environment, cwd=folder, input="said", capture_output=True, text=True, check=False)
            for run in (subprocess.run, forked.run)
        ]
        new, forked_one = [(end.returncode, end.stdout.replace(f"{tmp_path}/", ""), end.stderr) for end in ends]
        assert forked_one == new


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("import sys; sys.exit('a reason')", 1, "a reason\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os; os._exit(7)", 7, ""),
        ("import sys; sys.exit(256 + 3)", 3, ""),
    ],
)
def test_ends(program: str, code: int, said: str) -> None:
    ended = forked.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert ended.stdout == ""
    assert ended.stderr.endswith(said)


def test_a_forked_program_is_waited_for_and_killed() -> None:
    with forked.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM


RANK = """
import os, signal, sys
held = [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}") and int(name) > 2]
sockets = [name for name in held if os.readlink(f"/proc/self/fd/{name}").startswith("socket")]
told = [os.environ["RANK"], os.getppid() == int(os.environ["EXCB_LAUNCHER"]), os.getsid(0) == os.getpid(), sockets]
told += [signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, sys.argv[1:]]
open(os.environ["OUT"] + os.environ["RANK"], "w").write(repr(told))
sys.exit(3)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_ranks_are_children_of_their_launcher_and_inherit_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_rank.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    assert forked.launch("a_rank", ["word"], 2, answers=(3,)) == 3
    for rank in "01":
        assert (tmp_path / f"out{rank}").read_text() == repr([rank, True, True, [], True, ["word"]])


FORKS = """
import os, sys

def held():
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    return {number: os.readlink(f"/proc/self/fd/{number}") for number in numbers if number in opened}

opened = [os.memfd_create("a file of the rank") for _ in range(60)]
before, (reads, writes) = held(), os.pipe()
if not os.fork():
    os.write(writes, b"same" if held() == before else b"other")
    os._exit(0)
open(os.environ["OUT"] + os.environ["RANK"], "wb").write(os.read(reads, 9))
"""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
def test_no_file_of_a_rank_is_lost_in_its_data_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher's store closes files by their numbers in each fork of its process."""
    (tmp_path / "a_rank_that_forks.py").write_text(FORKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    assert forked.launch("a_rank_that_forks", [], 2) == 0
    assert [(tmp_path / f"out{rank}").read_bytes() for rank in "01"] == [b"same", b"same"]


def test_what_is_preloaded_is_there() -> None:
    program = "import sys, time, torch; print(time.process_time(), torch.get_num_threads(), *sys.modules)"
    ended = forked.run(
        [sys.executable, "-c", program], env=os.environ | {"OMP_NUM_THREADS": "2"}, stdout=-1, text=True, check=True
    )
    seconds, threads, *modules = ended.stdout.split()
    assert set(forked.PRELOADED) - set(modules) == set()  # a name that is gone would be imported by each program anew
    assert threads == "2"
    assert float(seconds) < 0.5  # importing takes seconds


def test_a_variable_that_was_read_on_import_needs_a_new_interpreter() -> None:
    with pytest.raises(AssertionError, match="HF_HOME: start a new interpreter"):
        forked.Popen([sys.executable, "-c", ""], env=os.environ | {"HF_HOME": "/elsewhere"})


def test_whoever_starts_a_new_interpreter_says_why() -> None:
    """It costs two to five seconds of CPU time where it imports torch; most programs can be forked."""
    silent = []
    for file in (ROOT / "tests").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "sys.executable" not in text or file.name == "forked.py":
            continue
        for block in ast.parse(text).body:
            code = "\n".join(text.splitlines()[block.lineno - 1 : block.end_lineno])
            starts = isinstance(block, ast.FunctionDef) and "sys.executable" in code and "forked." not in code
            if starts and not re.search("new[ _]interpreter", code, re.IGNORECASE):
                silent.append(f"{file.relative_to(ROOT)}, line {block.lineno}")
    assert silent == []


def test_a_run_that_hangs_says_where_each_of_its_processes_is(tmp_path: Path) -> None:
    """Both processes are forked."""
    program = (
        "import os, signal\n"
        "def parent():\n    while True: signal.pause()\n"  # a signal ends each pause
        "def child():\n    while True: signal.pause()\n"
        "print('up', flush=True)\n"
        "parent() if os.fork() else child()\n"
    )
    running = start_process([sys.executable, "-c", program], tmp_path / "run")
    with pytest.raises(AssertionError, match="the run did not end in 1 s: up") as failed:
        running.wait(1)
    assert re.search(r"in parent\b", str(failed.value))
    assert re.search(r"in child\b", str(failed.value))
    running.until_gone()
