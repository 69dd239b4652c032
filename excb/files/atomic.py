"""The one atomic writer: files and folders appear whole or not at all, also after a crash and with several writers.

They are written beside their target under a unique name, flushed to the disk, and then renamed. Who changes what a file
holds takes a lock first (`locked`). Files that grow (logs, resumable downloads) are not written here.
"""

import ctypes
import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from excb.errors import UserError, first_line, with_remedy
from excb.files.locks import MOMENTS, acquire


def check_writable_folder(folder: Path) -> None:
    """Check that a folder, which need not exist yet, can be written; nothing is left there. Raises UserError if not."""
    try:
        with tempfile.TemporaryFile(dir=nearest_existing(folder)):
            pass
    except OSError as error:
        raise UserError(f"cannot write in {folder.absolute()}: {with_remedy(error)}") from None


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
        partial.touch(exist_ok=False)  # made here: a link that stands there is not followed
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
    """Run a reader on what will be `file`, before anything is replaced. Raises UserError if it fails."""
    try:
        yield
    except (LookupError, OSError, TypeError, UserError, ValueError) as error:
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
        partial.mkdir()
        yield partial
        for file in sorted(partial.rglob("*")):
            flush(file)
        flush(partial)
        _replace_folder(partial, target)


@contextmanager
def _partial(target: Path, advice: str = "") -> Iterator[Path]:
    """Give a free path beside `target`, and remove what is left there."""
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            flush(target.parent)
        finally:
            _remove(partial)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error}{advice and f'; {advice}'}") from None


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
    aside = partial.with_suffix(".old")
    target.rename(aside)
    try:
        partial.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    _remove(aside)
