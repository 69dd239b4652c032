"""The door for files and folders that others may have written: regular files, stated sizes, one kind of error.

Other modules open files here, or by a library whose errors `parsing` turns into ValueError. Errors of the file system
stay OSErrors. `tests/test_doors.py` checks that nothing goes past it.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from excb.errors import NotTextError, RefusedFileError, UserError, first_line

VARIABLE = "EXCB_MEMORY_LIMIT"
GB = 10**9
_DEFAULT = 1.0  # GB
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # opening a named pipe would wait for its writer


class TooLargeError(ValueError):
    """A file states that it holds more than `memory_limit` allows; it may be intact."""


def memory_limit() -> int:
    """Bytes that a file may unpack to: $EXCB_MEMORY_LIMIT in GB, or 1 GB. Raises UserError if it is not a number."""
    text = os.environ.get(VARIABLE) or str(_DEFAULT)
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not 0 < limit < GB:
        raise UserError(f"{VARIABLE} is {text!r} in the environment: set it to a number of GB, such as 2")
    return int(limit * GB)


def check_memory(needed: float) -> None:
    """Raise TooLargeError if what a file states it holds needs more bytes than `memory_limit`."""
    if needed > (limit := memory_limit()):
        raise TooLargeError(
            f"it would take {needed / GB:,.1f} GB of memory, more than {limit / GB:,.1f} GB: if you trust it, set "
            f"{VARIABLE} to more GB"
        )


def open_file(file: Path | str) -> BufferedReader:
    """Open a file to read its bytes. Raises OSError, and RefusedFileError for a pipe, a device or a socket."""
    return open(file, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | _NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # `open` itself refuses a folder
        return descriptor
    os.close(descriptor)
    raise not_regular(path)


def refuse_special(source: object) -> None:
    """Raise RefusedFileError for a path of a special file: for libraries that open it themselves."""
    if isinstance(source, (str, Path)) and not stat.S_ISREG(os.stat(source).st_mode):  # noqa: PTH116 - either kind
        raise not_regular(source)


def not_regular(path: Path | str) -> RefusedFileError:
    """The error for a special file."""
    return RefusedFileError(errno.EINVAL, "it is not a regular file", os.fspath(path))


def read_bytes(file: Path, most: int | None = None) -> bytes:
    """All bytes of a file.

    Args:
        file: which may be of any origin.
        most: bytes that it may have; by default `memory_limit`.

    Raises:
        OSError: it cannot be read; RefusedFileError where it is special or larger.
    """
    with open_file(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > (limit := memory_limit() if most is None else most):
            settable = f": if you trust it, set {VARIABLE} to more GB" if most is None else ""
            reason = f"it has {size / 1e6:,.1f} MB, more than {limit / 1e6:,.1f} MB{settable}"
            raise RefusedFileError(errno.EFBIG, reason, os.fspath(file))
        return stream.read(size)


def sha256_of(file: Path) -> str:
    """SHA-256 of a file, 64 hexadecimal digits. Raises OSError if it cannot be read."""
    with open_file(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_text(file: Path, encoding: str = "utf-8", errors: str = "strict", most: int | None = None) -> str:
    r"""All text of a file, with \n at the ends of lines.

    Raises:
        OSError: see `read_bytes`; NotTextError: it is not text in this encoding.
    """
    try:
        text = read_bytes(file, most).decode(encoding, errors)
    except UnicodeDecodeError as error:
        name = {"utf-8-sig": "UTF-8"}.get(encoding, encoding.upper())
        reason = f"it is no text in {name} (byte {error.start + 1:,}): save it as {name}"
        raise NotTextError(errno.EILSEQ, reason, os.fspath(file)) from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


@contextmanager
def parsing() -> Iterator[None]:
    """Turn any error of the parser that is called inside into ValueError; OSErrors and UserErrors pass."""
    try:
        yield
    except (OSError, UserError, ValueError):
        raise
    except Exception as error:  # noqa: BLE001 - the parsers are others', and a damaged file may end anywhere in them
        raise ValueError(f"{type(error).__name__}: {first_line(error)}") from None


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one. Raises UserError if a link's target cannot be read."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:  # a link to itself is not a folder
            raise unreadable(entry.path, error) from None
        return False


def unreadable(place: Path | str, error: OSError) -> UserError:
    """The error for a file or folder that cannot be read."""
    # Skipping it would silently leave out images, or a whole class.
    return UserError(f"cannot read {place} ({error.strerror}): allow reading it, or move it out of the images")
