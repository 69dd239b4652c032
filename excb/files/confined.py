"""Parsers whose memory no header tells, in a child process that may take so much memory and time, and no more."""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, NoReturn, TypeVar

from excb.errors import first_line
from excb.files.foreign import GB, VARIABLE, TooLargeError, memory_limit

SECONDS = 60  # of processor time, and as many for every GB that the parser may take
_START = "import sys; from excb.files.confined import work; work(*sys.argv[1:])"
_FAILED, _FULL = 1, 3  # exit codes of the child: its last line says why, or it had no memory left
# Allocators that reserve much more than they use would meet the limit at once.
_SMALL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}

_LONGEST = 4000  # bytes of its line

T = TypeVar("T")
Parser = Callable[..., None]  # called with `limit`, a stream to write to, and words


def confined(parser: Parser, *words: str, size: int, read: Callable[[IO[bytes]], T]) -> T:
    """Parse a file in a child process, which has `memory_limit` and the file's size for all but its imports.

    Where the system has no such limits, it has none.

    Args:
        parser: a function of a module; it calls `limit` after its imports, and writes what it has parsed.
        words: its other arguments.
        size: bytes of the file.
        read: called with the stream that the parser writes to.

    Raises:
        ValueError: the parser failed or was ended; TooLargeError where it needs more memory.
    """
    most = memory_limit() + size
    search = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
    command = [sys.executable, "-P", "-c", _START, parser.__module__, parser.__name__, str(most), *words]
    environment = {**os.environ, **_SMALL, "PYTHONPATH": search}
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=nothing, stdout=pipe, stderr=pipe, env=environment) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        made, failed = None, None
        try:
            made = read(child.stdout)
        except TooLargeError:
            child.kill()
            raise
        except Exception as error:  # noqa: BLE001 - of a stream that ends in the middle: the child knows why
            failed = ValueError(first_line(error))
        child.stdout.close()
        lines = child.stderr.read().decode(errors="replace").strip().splitlines()
    if child.returncode == _FULL:
        raise TooLargeError(
            f"it would take more than {most / GB:,.1f} GB of memory: if you trust it, set {VARIABLE} to more GB"
        )
    if child.returncode:
        raise ValueError(_reason(child.returncode, lines))
    if failed is not None:
        raise failed
    return made  # type: ignore[return-value]


def _reason(code: int, lines: list[str]) -> str:
    if code == -signal.SIGXCPU:
        return "reading it takes too long"
    if code < 0:
        return f"its parser ended by {signal.Signals(-code).name}"
    return next(reversed(lines), "its parser failed")


def work(module: str, name: str, most: str, *words: str) -> NoReturn:
    """In the child: call the parser, and end with an exit code that says how it went."""
    parser: Parser = getattr(importlib.import_module(module), name)
    code, said = 0, os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries may print any number of lines, which nobody reads yet
    try:
        with open(1, "wb", closefd=False) as stream:
            parser(partial(_limit, int(most)), stream, *words)
    except (MemoryError, TooLargeError):
        code = _FULL
    except Exception as error:  # noqa: BLE001 - the parsers are others'
        os.write(said, f"{type(error).__name__}: {first_line(error)}\n".encode(errors="replace")[:_LONGEST])
        code = _FAILED
    os._exit(code)


def _limit(most: int) -> None:
    """Let this process take so many bytes more than it has, and a time that fits."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        memory, seconds = pages * resource.getpagesize() + most, SECONDS + SECONDS * most // GB
        for kind, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds)):
            _, hardest = resource.getrlimit(kind)
            resource.setrlimit(kind, (value if hardest < 0 else min(value, hardest), hardest))
    except (ImportError, OSError):  # not Linux
        return
