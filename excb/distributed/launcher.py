"""The launcher that started this process as a rank of a run: its environment variables, and whether it is alive.

Importing this module needs no torch, so that the launcher is watched from the start.
"""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from excb.errors import require

LOST = 75  # exit code of a process that lost its launcher or another process, so that it is not taken for the cause
POLL = 1.0  # seconds between checks of the launcher
SAVING = 60.0  # seconds that a rank without its launcher may take to save
# A process that a shell started in the background outlives it by custom (nohup), so a shell is not a launcher.
SHELLS = ("ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh")
LAUNCHER = "EXCB_LAUNCHER"  # environment variable: process id of our own launcher, which may die before we look
CORES = "EXCB_CORES"  # environment variable: cores that this rank alone may use; without it, ranks share the machine's
GROUP = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

gone = threading.Event()  # the launcher is dead
saves = threading.Event()  # what runs now looks at `gone` after every step, and saves (`StopRequest`)
_ends: list[Callable[[], None]] = []  # what the blocks of `ending_with_launcher` do at their ends


def started_together() -> bool:
    """Whether this process was started as one of several, or by torchrun."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def whole_number(variable: str, default: int, *, least: int = 0) -> int:
    """A launcher's environment variable. Raises UserError if it is not a whole number, or below `least`."""
    text = os.environ.get(variable, str(default))
    require(
        re.fullmatch("[0-9]{1,9}", text) is not None and int(text) >= least,
        f"{variable} is {text!r} in the environment, and no whole number of {least} or more: unset it, or start the "
        "processes with --gpus N or torchrun",
    )
    return int(text)


def check_environment() -> None:
    """Raise UserError unless the variables of a rank fit each other."""
    for number, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if number in os.environ and size in os.environ:
            own, all_of_them = whole_number(number, 0), whole_number(size, 1, least=1)
            require(
                own < all_of_them,
                f"{number} is {own}, but {size} is {all_of_them}: unset both, or start the processes with --gpus N or "
                "torchrun",
            )
    whole_number("LOCAL_RANK", 0)
    whole_number("LOCAL_WORLD_SIZE", 1, least=1)
    whole_number("MASTER_PORT", 0)


@contextmanager
def ending_with_launcher(program: str) -> Iterator[None]:
    """While the block runs, a rank whose launcher dies (SIGKILL, out of memory) saves and leaves, or ends at once.

    Nothing else would end it: it would keep its GPU, and the run's folder. A process that is not a rank is left alone.

    Args:
        program: for the message.

    Raises:
        UserError: a rank's EXCB_LAUNCHER is not a number.
    """
    chain, done = _chain() if started_together() else [], threading.Event()
    if started_together() and LAUNCHER in os.environ and (ours := whole_number(LAUNCHER, 0, least=1)) not in chain:
        chain = [os.getpid(), ours]  # our parent no longer
    elif started_together() and _PARENT and os.getppid() != _PARENT and _PARENT_NAME not in SHELLS:
        chain = [os.getpid(), _PARENT]
    watcher = threading.Thread(target=_watch, args=(program, chain, done), daemon=True)

    def end() -> None:
        done.set()
        if chain:
            watcher.join(POLL)
            if not gone.is_set() and not _is_whole(chain):  # another rank saw it first, and ended the run for all
                _report(program, chain, "the run stops")

    if chain:
        watcher.start()
    _ends.append(end)
    try:
        yield
    finally:
        _ends.pop()
        end()


def exit_at_once(code: int) -> NoReturn:
    """End this process without clean-up. A launcher that is gone is reported first, as at the block's end."""
    for end in reversed(_ends):
        end()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _watch(program: str, chain: list[int], done: threading.Event) -> None:
    while _is_whole(chain):
        if done.wait(POLL):
            return
    saving = saves.is_set()
    _report(program, chain, "the run saves and stops" if saving else "the run stops")
    gone.set()
    if not saving or not done.wait(SAVING):
        os._exit(LOST)


def _report(program: str, chain: list[int], what: str) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with suppress(OSError, ValueError):  # nobody may be left to read it
            sys.stderr.write(f"{program}: the launcher (process {chain[-1]}) is gone: {what}\n")
            sys.stderr.flush()


def _chain() -> list[int]:
    """This process, programs that were started for this rank around it, and the launcher; empty if there is none.

    What runs around a rank (a script, `numactl`) has the rank's own variables, the launcher does not.
    """
    own, chain = _place(os.environ), [os.getpid(), os.getppid()]
    while chain[-1] and _place(_environment(chain[-1])) == own:
        chain.append(_parent(chain[-1]))
    return chain if chain[-1] and _name(chain[-1]) not in SHELLS else []


def _is_whole(chain: list[int]) -> bool:
    """Whether each is still the next one's child. The system gives a dead process's children to another one."""
    return all(_parent(child) == parent for child, parent in pairwise(chain))


def _place(environment: Mapping[str, str]) -> list[str | None]:
    return [environment.get(name) for name in GROUP]


def _environment(process: int) -> dict[str, str]:
    """The variables that a process was started with; none where the system does not show them."""
    items = _shown(process, "environ").split("\0")
    return {name: value for name, _, value in (item.partition("=") for item in items)}


def _parent(process: int) -> int:
    """The process's parent, 0 if there is none or the system does not show it."""
    if process == os.getpid():
        return os.getppid()
    fields = _shown(process, "stat").rpartition(")")[2].split()  # the name before may hold anything
    return int(fields[1]) if fields else 0


def _name(process: int) -> str:
    return _shown(process, "comm").strip()


def _shown(process: int, name: str) -> str:
    try:
        return Path(f"/proc/{process}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# Before torch is imported, which takes seconds in which a launcher may die.
_PARENT = os.getppid() if started_together() else 0  # 0: forked later from a process that was none of a run
_PARENT_NAME = _name(_PARENT) if _PARENT else ""
