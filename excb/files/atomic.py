"""The one atomic writer: files and folders appear whole or not at all, also after a crash and with several writers.

They are written beside their place under a name that no other writer has, flushed to the disk, and then renamed. Not
written here: files that grow (logs, downloads that can resume), for which half a file is what is wanted.
"""

import ctypes
import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from excb.errors import UserError


def check_folder(folder: Path) -> None:
    """Refuse a folder, there or not, in which no file can be made: before hours of work, not after. Nothing is left.

    Raises:
        UserError: it cannot be written, or a file is in its place.
    """
    try:
        with tempfile.TemporaryFile(dir=existing(folder)):
            pass
    except OSError as error:
        raise UserError(f"cannot write in {folder.absolute()}: {error.strerror or error}") from None


def existing(path: Path) -> Path:
    """The path, or what is nearest to it on the way, there, and to be seen."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if _seen(place))


def _seen(place: Path) -> bool:
    try:
        return place.exists()
    except PermissionError:  # a folder on the way may not be entered
        return False


@contextmanager
def new_file(target: Path, *, advice: str = "") -> Iterator[Path]:
    """Give the name of a file to write; when the block ends without an error, it takes the place of `target`.

    Args:
        target: the file; its folder is made.
        advice: what to do, or what is safe, if it cannot be written.

    Raises:
        UserError: it cannot be written; what was there is untouched.
    """
    with _made_beside(target, advice) as made:
        yield made
        flush(made)
        made.replace(target)


def write_text(text: str, file: Path, *, advice: str = "") -> None:
    """Write a text file in UTF-8: see `new_file`.

    Raises:
        UserError: the file cannot be written; what was there is untouched.
    """
    write_bytes(text.encode(), file, advice=advice)


def write_bytes(contents: bytes, file: Path, *, advice: str = "") -> None:
    """Write a file: see `new_file`. Of several writers of the same file, the last one wins.

    Raises:
        UserError: the file cannot be written; what was there is untouched.
    """
    with new_file(file, advice=advice) as made:
        made.write_bytes(contents)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder to fill; when the block ends without an error, it takes the place of `target`.

    An older folder there goes with all that it holds. On Linux there is no moment without the one or the other.

    Raises:
        UserError: it cannot be written; what was there is untouched.
    """
    with _made_beside(target) as made:
        made.mkdir()
        yield made
        for file in sorted(made.rglob("*")):
            flush(file)
        flush(made)
        _put(made, target)


@contextmanager
def _made_beside(target: Path, advice: str = "") -> Iterator[Path]:
    """Give a free name beside `target`; nothing is left under it."""
    made = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield made
            flush(target.parent)
        finally:
            _remove(made)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error}{advice and f'; {advice}'}") from None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Have the disk hold a file, or a folder's list of names, before anything else happens."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put(made: Path, target: Path) -> None:
    """Give a folder its name; what had that name has the other one afterwards, or is gone."""
    try:
        made.rename(target)  # nothing is there yet, or an empty folder
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        if not _exchange(made, target):
            _put_in_two_steps(made, target)


def _exchange(first: Path, second: Path) -> bool:
    """Swap the names of two folders in one step; False where the system (all but Linux) or the disk cannot."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return swap is not None and swap(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0


def _put_in_two_steps(made: Path, target: Path) -> None:
    aside = made.with_suffix(".old")
    target.rename(aside)
    try:
        made.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    _remove(aside)
