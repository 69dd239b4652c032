"""Calls in forks of a process that has imported everything: deadlines, peaks of memory, and signals at any moment."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

POLL = 0.002  # seconds between looks
FAILED = 99  # exit code of a call that raised


class Ended(NamedTuple):
    """How a fork ended."""

    code: int | None  # its exit code, minus the signal that ended it, or None: it hung and was killed
    seconds: float
    log: str  # what it wrote to stdout and stderr
    signalled: bool = False


class Signal(NamedTuple):
    """A signal after so many seconds, to the process alone or to its group."""

    number: signal.Signals
    after: float
    group: bool = False


def fork(call: Callable[[], int], log: Path, *, patience: float, killing: Signal | None = None) -> Ended:
    """Run a call in a fork that leads a session, and wait for its end.

    Args:
        call: gives the exit code.
        log: the file that its output goes to.
        patience: seconds after which it hangs; after a signal they begin anew.
        killing: sent while it runs.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    began, sent = time.monotonic(), False
    process = os.fork() or _run(call, log)
    deadline = began + patience
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        now = time.monotonic()
        if ended:
            break
        if killing is not None and not sent and now - began >= killing.after:
            sent, deadline = True, now + patience
            (_kill_group if killing.group else os.kill)(process, killing.number)
        if now > deadline:
            _kill_group(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return Ended(None, now - began, _text(log), sent)
        time.sleep(POLL)
    code = os.waitstatus_to_exitcode(status)
    return Ended(code, now - began, _text(log), sent)


def _run(call: Callable[[], int], log: Path) -> NoReturn:
    code = FAILED
    try:
        os.setsid()
        with log.open("wb") as stream:
            for number in (1, 2):
                os.dup2(stream.fileno(), number)
        sys.stdout = open(1, "w", buffering=1, errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        code = call()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _kill_group(process: int, number: signal.Signals) -> None:
    try:
        os.killpg(process, number)
    except ProcessLookupError:  # it leads none yet, or has ended
        os.kill(process, number)


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="surrogateescape")
