"""Python programs forked from a server that has imported torch: they start in hundredths of a second, not in seconds.

`Popen`, `run` and `launch` are those of `subprocess` and `excb.distributed.launch`. A forked program has the arguments,
environment, folder and streams that it is given, and runs its atexit functions at its end. What it starts itself is
forked from it: ranks, also those of torchrun, and `excb-eval watch`. What it imports is there already, and has read its
environment variables. So a test starts a new interpreter (and says why) if it tests what is imported, what a module
reads when it is imported, or how an interpreter begins or ends.
"""

import atexit
import faulthandler
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import pytest

from tests.clone import ROOT
from tests.pretrain.short_end import VARIABLE, end_shortly

PRELOADED = [
    "excb.distributed.launch",
    "excb.images.shards",
    "excb.pretrain.__main__",
    "excb.pretrain.figures.curves",
    "excb.pretrain.loop",
    "excb.transfer.cli",
    "faiss",
    "hypothesis",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "sklearn.neighbors",
    "tests.faults.deeds",
    "timm",
    "tests.frozen",
]
TELLS_STACKS = signal.SIGURG  # a forked program says on stderr where its threads are; any other ignores it
READ_ON_IMPORT = ("HF_", "TRITON_")  # environment variables that a forked program cannot be given

_LAUNCH = (
    "import sys; from excb.errors import run_program; from excb.distributed.launch import launch; "
    "sys.exit(run_program('launch', lambda: launch(sys.argv[3], sys.argv[4:], int(sys.argv[1]), "
    "answers=[*map(int, sys.argv[2].split())])))"
)
_GIVEN = signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_is_forked = False  # this process is a forked program


def server() -> ForkServerContext:
    """`multiprocessing`'s context whose processes are forked from a process that has imported all of PRELOADED."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with mock.patch.dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"):
        forkserver.ensure_running()  # from any folder: one that is started with a process finds no tests elsewhere
    return context


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen` of `[sys.executable, "-m" MODULE or "-c" CODE or FILE, ARGUMENTS]`, without a new interpreter.

    In a test it is forked from the server. In a forked program it is a fork of that program, whose child it has to be:
    ranks watch their parent.
    """

    _process: Any = None  # where the server forked it

    def _execute_child(self, *given: Any) -> None:
        """Start it, where `subprocess` would fork and exec."""
        names = _GIVEN.bind(self, *given).arguments
        if names["args"][0] != sys.executable:  # such as git, which a forked program may start
            super()._execute_child(*given)  # type: ignore[misc]
            return
        pipes = [names[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        program = _Program(
            words=[word for word in map(os.fspath, names["args"][1:]) if word != "-u"],  # streams have no buffer anyway
            folder=os.fspath(names["cwd"] or Path.cwd()),
            environment=dict(names["env"] or os.environ),
            leads_session=names["start_new_session"],
            streams=[own if own >= 0 else number for number, own in enumerate((pipes[0], pipes[3], pipes[5]))],
        )
        try:
            if _is_forked:
                self.pid = os.fork() or program.run_forked()
            else:
                program.check_environment()
                self._process = server().Process(target=program.run)
                self._process.start()
                self.pid = self._process.pid
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self._process is None:
            return super()._internal_poll(*given, **named)  # type: ignore[misc]
        if self.returncode is None:
            self.returncode = self._process.exitcode
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._process is None:
            return super()._wait(timeout)  # type: ignore[misc]
        self._process.join(timeout)
        if self._internal_poll() is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode


def run(words: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` of a forked program."""
    with mock.patch.object(subprocess, "Popen", Popen):
        return subprocess.run([*map(str, words)], **options)  # noqa: PLW1510 - the caller says whether it checks


def launcher(module: str, arguments: Sequence[str], processes: int, *, answers: Collection[int] = ()) -> list[str]:
    """The command line of a program that calls `excb.distributed.launch.launch`, whose ranks are forked as well."""
    numbers = [str(processes), " ".join(map(str, answers))]
    return [sys.executable, "-c", _LAUNCH, *numbers, module, *map(str, arguments)]


def launch(module: str, arguments: Sequence[str], processes: int, *, answers: Collection[int] = ()) -> int:
    """`excb.distributed.launch.launch` in a forked program: its exit code."""
    return run(launcher(module, arguments, processes, answers=answers), check=False).returncode


@dataclass
class _Program:
    """A program that a forked process becomes. It is pickled on its way to the server, with its open streams."""

    words: list[str]  # its command line, without the interpreter
    folder: str
    environment: dict[str, str]
    leads_session: bool
    streams: list[int]  # file descriptors of its stdin, stdout and stderr

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"streams": [DupFd(stream) for stream in self.streams]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"streams": [stream.detach() for stream in state["streams"]]})

    def check_environment(self) -> None:
        """No variable differs from the server's that the server's modules have read."""
        for name in os.environ.keys() | self.environment.keys():
            if name.startswith(READ_ON_IMPORT):
                assert self.environment.get(name) == os.environ.get(name), f"{name}: start a new interpreter"

    def run_forked(self) -> NoReturn:
        """`run`, in a fork of a forked program: as if by exec, its files and signal handlers are not inherited."""
        signal.set_wakeup_fd(-1)
        for each in signal.valid_signals():
            if callable(signal.getsignal(each)):
                signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
        for number, stream in enumerate([os.dup(stream) for stream in self.streams]):
            os.dup2(stream, number)
        self.streams = [0, 1, 2]
        _give_up_files(but=(0, 1, 2, resource_tracker._resource_tracker._fd))  # type: ignore[attr-defined]
        self.run()

    def run(self) -> NoReturn:
        """Become the program, and end as an interpreter does."""
        code = 1
        try:
            self._enter()
            code = _exit_code(self.words)
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _enter(self) -> None:
        global _is_forked  # noqa: PLW0603
        import torch

        _is_forked = True
        vars(subprocess)["Popen"] = Popen
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        if self.leads_session:
            os.setsid()
        for number, stream in enumerate(self.streams):
            os.dup2(stream, number)
        sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc] # noqa: SIM115
        for name, number in (("stdout", 1), ("stderr", 2)):
            errors = "backslashreplace" if number == 2 else "strict"
            opened = open(number, "w", buffering=1, errors=errors, closefd=False)  # noqa: SIM115
            setattr(sys, name, opened)
            setattr(sys, f"__{name}__", opened)
        faulthandler.register(TELLS_STACKS, sys.stderr)
        if threads := self.environment.get("OMP_NUM_THREADS"):
            torch.set_num_threads(int(threads))
        multiprocessing.set_start_method(None, force=True)  # of data workers, as in any other program
        if VARIABLE in self.environment:
            end_shortly(pytest.MonkeyPatch())
        first = str(Path(self.words[0]).resolve().parent) if self.words[0][0] != "-" else self.folder
        sys.path[:0] = [first, *filter(None, self.environment.get("PYTHONPATH", "").split(os.pathsep))]


def _give_up_files(but: Collection[int | None]) -> None:
    """Put the null device in place of all open files but these.

    Closed, their numbers would go to new files, which a library may then take for its own. libuv, with which a launcher
    of ranks keeps its store, closes two of its numbers and opens a pipe there whenever its process is forked: a data
    worker of a rank whose queue had one of these numbers waited forever.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(file.name) for file in Path("/dev/fd").iterdir()]:
        with suppress(OSError):  # the listing itself was one, and is closed
            os.fstat(number)
            if number not in but:
                os.dup2(nothing, number, inheritable=False)
    if nothing not in but:
        os.close(nothing)


def _exit_code(words: Sequence[str]) -> int:
    """Run a command line's program, and turn its end into an exit code as the interpreter does."""
    kind, *rest = words if words[0] in ("-m", "-c") else ("", *words)
    sys.argv = [kind or rest[0], *rest[1:]]
    try:
        if kind == "-m":
            for loaded in (rest[0], f"{rest[0]}.__main__"):
                if not hasattr(sys.modules.get(loaded), "__path__"):
                    sys.modules.pop(loaded, None)  # runpy warns of a program that was imported before it is run
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(rest[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)  # noqa: T201
        return 1
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        return 1
    return 0
