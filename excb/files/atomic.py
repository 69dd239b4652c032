"""The one atomic writer: files and folders appear whole or not at all, also after a crash and with several writers.

They are written beside their target under a hidden, unique name, flushed to the disk, and then renamed. Their writer
locks them, by which the next writer knows what killed ones left, and removes it. Who changes what a file holds takes a
lock first (`locked`). Files that grow (logs, resumable downloads) are not written here.
"""

import ctypes
import errno
import hashlib
import os
import platform
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from excb.errors import UserError, first_line, with_remedy
from excb.files.locks import MOMENTS, acquire, lock_open_file

_MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]  # some network disks show no machine others' locks
_HIDDEN = re.compile(rf"\.(.+)\.{_MACHINE}[0-9a-f]{{24}}\.tmp", re.DOTALL)
_OF_ANY_MACHINE = re.compile(r"\..+\.[0-9a-f]{32}\.(tmp|new|old)", re.DOTALL)
_NEW, _OLD = ".new", ".old"  # endings of folders that belong to a hidden file
_MANY = 1000  # names in a folder that is listed once by each process, not before each file
_LISTED: set[Path] = set()  # such folders


def check_writable_folder(folder: Path, *, advice: str = "") -> None:
    """Check that a folder, which need not exist yet, can be written; nothing is left there. Raises UserError if not."""
    try:
        with tempfile.TemporaryFile(dir=nearest_existing(folder)):
            pass
    except OSError as error:
        message = f"cannot write in {folder.absolute()}: {with_remedy(error)}"
        raise UserError(f"{message}; {advice}" if advice else message) from None


def nearest_existing(path: Path) -> Path:
    """The path, or its nearest parent that exists and can be accessed."""
    for place in (path := path.absolute(), *path.parents):
        with suppress(PermissionError):  # a parent folder may not be entered
            if place.exists():
                return place
    raise AssertionError("the root exists")


@contextmanager
def new_file(target: Path, *, advice: str = "") -> Iterator[Path]:
    """Give the path of a file to write. It replaces `target` when the block ends without an error.

    Args:
        target: the file; its folder is made.
        advice: for the message, if it cannot be written.

    Raises:
        UserError: it cannot be written. An older file is untouched.
    """
    with _partial(target, advice) as partial:
        yield partial
        flush(partial)
        partial.replace(target)


def write_text(text: str, file: Path, *, advice: str = "") -> None:
    """Write a text file in UTF-8, with the arguments and errors of `new_file`.

    Bytes of file names that are not UTF-8 are written as they are.
    """
    write_bytes(text.encode("utf-8", "surrogateescape"), file, advice=advice)


@contextmanager
def read_again(file: Path) -> Iterator[None]:
    """Run a reader on what will be `file`, before anything is replaced.

    Raises:
        UserError: it refuses what it reads. Other errors are bugs, and pass with their traceback.
    """
    try:
        yield
    except (OSError, UserError, ValueError) as error:
        reason = first_line(error)
        raise UserError(f"{file} is not written, since it could not be read again ({reason}): report this") from None


def write_bytes(contents: bytes, file: Path, *, advice: str = "") -> None:
    """Write a file, with the arguments and errors of `new_file`. Of several writers the last one wins."""
    with new_file(file, advice=advice) as partial:
        partial.write_bytes(contents)


@contextmanager
def locked(file: Path, *, advice: str = "", patience: float = MOMENTS) -> Iterator[None]:
    """Let one process after the other read a file, change what it says and write it again.

    The system releases the lock however its process ends. What holds it stays beside the file, empty.

    Args:
        file: which need not exist yet; its folder is made.
        advice: for the message, if it cannot be locked.
        patience: seconds to wait for another process.

    Raises:
        UserError: it cannot be locked, or another process holds it for so long.
    """
    try:
        lock = acquire(lock_of(file), f"changes {file.name}", patience=patience)
    except (OSError, NotImplementedError) as error:
        raise UserError(f"cannot write {file}: {error}{advice and f'; {advice}'}") from None
    try:
        yield
    finally:
        lock.release()


def lock_of(file: Path) -> Path:
    """The file that holds the lock of another one."""
    return file.with_name(f"{file.name}.lock")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder to fill. It replaces `target` and all its contents when the block ends without an error.

    On Linux one of the two is there at every moment.

    Raises:
        UserError: it cannot be written. An older folder is untouched.
    """
    with _partial(target) as partial:
        unfinished = partial.with_suffix(_NEW)
        try:
            unfinished.mkdir()
            yield unfinished
            for file in sorted(unfinished.rglob("*")):
                flush(file)
            flush(unfinished)
            _replace_folder(unfinished, target)
        finally:
            _remove(unfinished)


@contextmanager
def _partial(target: Path, advice: str = "") -> Iterator[Path]:
    """Give a new file beside `target`, locked as long as its writer lives, and remove it if it is still there."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target.parent)
        partial, lock = _new_and_locked(target)
        try:
            yield partial
            flush(target.parent)
        finally:
            _remove(partial)
            os.close(lock)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error}{advice and f'; {advice}'}") from None


def _new_and_locked(target: Path) -> tuple[Path, int]:
    """A hidden file beside `target`, and its descriptor, which holds the lock where the disk has locks."""
    while True:
        partial = target.with_name(f".{target.name}.{_MACHINE}{uuid.uuid4().hex[8:]}.tmp")
        lock = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)  # a link that stands there is not followed
        lock_open_file(lock, wait=True)
        if partial.exists():
            return partial, lock
        os.close(lock)  # another writer took it for a leftover before it was locked


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left in a folder: hidden files that nobody locks, and folders that belong to them.

    Those of other machines stay, and without locks (some network disks, Windows) all do, since their writers may be
    alive.
    """
    if folder in _LISTED:
        return
    with suppress(OSError):  # one may write in a folder that one may not list
        with os.scandir(folder) as entries:  # a quarter of pathlib's time, before every write
            names = [entry.name for entry in entries]
        for hidden in filter(None, map(_HIDDEN.fullmatch, names)):
            _remove_leftover(folder / hidden[0], folder / hidden[1])
        if len(names) > _MANY:
            _LISTED.add(folder)


def is_unfinished(name: str) -> bool:
    """Whether a file or a folder of this name is being written, or was when its writer was killed, on any machine."""
    return _OF_ANY_MACHINE.fullmatch(name) is not None


def _remove_leftover(partial: Path, target: Path) -> None:
    """Remove a hidden file unless its writer lives."""
    with suppress(OSError):
        lock = os.open(partial, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if lock_open_file(lock, wait=False):
                _remove(partial.with_suffix(_NEW))
                aside = partial.with_suffix(_OLD)
                if aside.exists() and not target.exists():  # killed between two steps of `_replace_in_two_steps`
                    aside.rename(target)
                _remove(aside)
                _remove(partial)  # the last: without it nobody finds the others
        finally:
            os.close(lock)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace_folder(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)  # nothing is there yet, or an empty folder
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        if not _exchange(partial, target):
            _replace_in_two_steps(partial, target)


def _exchange(first: Path, second: Path) -> bool:
    """Swap the names of two folders in one step. False where the system (all but Linux) or the disk cannot."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return swap is not None and swap(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0


def _replace_in_two_steps(partial: Path, target: Path) -> None:
    aside = partial.with_suffix(_OLD)
    target.rename(aside)
    try:
        partial.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    _remove(aside)
