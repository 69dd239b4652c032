"""A part's process: with all that it starts it ends at its time limit, or when the process that waits for it dies."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excb.files import json_text

ROOT = Path(__file__).resolve().parents[2]  # of the clone
GRACE = 15.0  # seconds from SIGTERM, at which a run saves, to SIGKILL
REPORTED = 10.0  # seconds between two reports of progress
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
_MISSING = re.compile(r"ModuleNotFoundError: No module named '((?!excb|benchmarks|tests)\w+)")


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int | None  # its exit code; None if it was ended at its limit
    seconds: float


def run_limited(
    words: Sequence[str], log: Path, *, limit: float, report: Callable[[float], None] = lambda _seconds: None
) -> Ended:
    """Run `python WORDS` in the clone, with the clone first on its path and no network.

    Args:
        words: the command without `python`.
        log: where its output is appended.
        limit: seconds after which it is asked to end, and `GRACE` seconds later killed.
        report: called with the seconds so far, every `REPORTED` seconds.
    """
    start, code = time.monotonic(), None
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            process_group=0,  # so that what it starts can be ended with it
            preexec_fn=end_with_parent,  # noqa: PLW1509 - this process has one thread
        )
    try:
        while code is None and (left := start + limit - time.monotonic()) > 0:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(min(left, REPORTED))
            if code is None:
                report(time.monotonic() - start)
    finally:
        _end(process)
    return Ended(code, time.monotonic() - start)


def end_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies: nobody else would stop what holds a GPU."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process, if it still runs, and all that it left behind."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with suppress(ProcessLookupError, PermissionError):  # none is left; macOS says it of those that have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_lines(log: Path, *, lines: int = 12, width: int = 300) -> list[str]:
    """The end of a log, without empty lines."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2**16))
        text = file.read().decode(errors="replace")
    return [line[:width] for line in text.splitlines() if line.strip()][-lines:]


def missing_module(lines: Sequence[str]) -> str:
    """The package whose absence the end of a log tells of; empty if it does not."""
    match = _MISSING.search("\n".join(lines))
    return "" if match is None else match[1]


def read_figures(file: Path) -> Any:
    """The figures that a part wrote; None if it wrote nothing, or no JSON."""
    try:
        return json_text.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def duration(seconds: float) -> str:
    """A time for people. `excb.console` has one too, but it needs `rich`, without which a call can still report."""
    rounded = round(seconds)
    return f"{rounded} s" if rounded < 60 else f"{rounded // 60} min {rounded % 60} s"
