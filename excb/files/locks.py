"""Locks between processes: the system releases them however their process ends, and every wait has an end."""

import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from excb.errors import UserError

if TYPE_CHECKING:
    from filelock import BaseFileLock

MOMENTS = 60.0  # seconds that a lock is waited for which is held for milliseconds
STALLED = 1800.0  # seconds without an advance of work that takes long
ASK = 2.0  # seconds between two looks at the work
_TABLE = Path("/proc/locks")
_LONGEST = 80  # characters of a command line


def acquire(
    lock: Path,
    work: str,
    *,
    advance: Callable[[], object] = lambda: None,
    patience: float = MOMENTS,
    note: Callable[[str], None] = lambda _line: None,
    advice: str = "",
) -> "BaseFileLock":
    """Lock a file, and wait for whoever holds it; `release` of what is returned gives it up.

    Args:
        lock: the file that holds the lock; its folder is made.
        work: what its holder does, for messages, such as "changes hashes.json".
        advance: a value that changes as the holder's work advances.
        patience: seconds without an advance after which this gives up.
        note: called once, with who is waited for.
        advice: what else to do, for the message.

    Raises:
        UserError: the holder has not advanced for so long. It names process, machine and file.
        OSError, NotImplementedError: it cannot be written, or the disk has no locks.
    """
    from filelock import FileLock, Timeout

    taken = FileLock(lock)
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        return taken.acquire(blocking=False).lock
    except Timeout:
        note(f"{holder(lock)} {work}: waiting for it")
    seen, since = advance(), time.monotonic()
    while True:
        try:
            return taken.acquire(timeout=min(ASK, patience)).lock
        except Timeout:
            now = time.monotonic()
        if (latest := advance()) != seen:
            seen, since = latest, now
        elif now - since >= patience:
            span = f"{patience / 60:.0f} minutes" if patience >= 120 else f"{patience:g} s"
            raise UserError(
                f"{holder(lock)} {work}, holds {lock} and has not advanced for {span}: wait for it or end it"
                f"{advice and f', or {advice}'}, then start again"
            )


def lock_open_file(descriptor: int, *, wait: bool) -> bool:
    """Lock a file for as long as a descriptor that may write is open.

    Args:
        descriptor: of the file; a forked process inherits the lock with it.
        wait: for another descriptor that holds the lock.

    Returns:
        Whether it is locked: False if another descriptor holds it, or if the disk or the system has no locks.
    """
    try:
        import fcntl  # not on Windows
    except ImportError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def beat(lock: Path) -> None:
    """Say to whoever waits that the work advances, by the time of the lock's file."""
    with suppress(OSError):
        os.utime(lock)


def beats(lock: Path) -> int:
    """The time of the last `beat`, in ns; 0 without one."""
    try:
        return lock.stat().st_mtime_ns
    except OSError:
        return 0


def holder(lock: Path) -> str:
    """The process that holds a lock, in words; on Linux with its number, its machine and its command line."""
    number = _holding(lock)
    if number is None:
        return "another process, perhaps on another machine,"
    try:
        words = Path(f"/proc/{number}/cmdline").read_text(encoding="utf-8", errors="replace").replace("\0", " ").strip()
    except OSError:  # it has just ended, or is another user's
        words = ""
    shown = f" ({words[:_LONGEST]})" if words.isprintable() and words else ""
    return f"process {number}{shown} on {platform.node()}"


def _holding(lock: Path) -> int | None:
    """The number of the process that holds a lock, where the system lists it."""
    try:
        facts = lock.stat()
        lines = _TABLE.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    place = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    fields = (line.split() for line in lines)
    return next((int(each[4]) for each in fields if each[1] != "->" and each[5] == place and int(each[4]) > 0), None)
