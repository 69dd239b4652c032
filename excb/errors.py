"""Errors that the user can fix: one clear message each, exit code 2, no traceback."""

import difflib
import errno
import itertools
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

LONGEST_MESSAGE = 2000  # characters; a longer message is cut in the middle, since it ends in what to do
LONGEST_VALUE = 80  # characters of a value that a message repeats
MOST_BESIDE = 2000  # names that a missing one is compared with
USER_ERROR = 2  # exit code of every error that the user can fix
_SHOWN = "\n\t\u200c\u200d"  # several scripts need joiners and non-joiners within words

# Errors that a file system may raise in any program at any path, and what the user can do about them.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_ROOM = "free some space, or name a place on another disk"
_REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "allow reading and writing, or name another place"),
    errno.EROFS: "name a writable place",
    **dict.fromkeys(NO_ROOM, _ROOM),
    errno.ENAMETOOLONG: "use a shorter name",
    **dict.fromkeys((errno.EIO, errno.ESTALE), "check its disk or file server, then start again"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files (`ulimit -n`)"),
    errno.ENOMEM: "free some memory, or raise its limit (`ulimit -v`)",
}
# How torch, Python and the loader of libraries say that memory or threads cannot be had.
_OUT_OF_MEMORY = re.compile(
    "can't allocate memory|can't start new thread|failed to map segment|Cannot allocate memory|bad_alloc|"
    "could not create a (primitive|memory)"  # of oneDNN
)


class UserError(Exception):
    """An error that the user can fix.

    Args:
        message: one line that says what is wrong and what to do.
        already_reported: another process of the run prints it.
        rank_local: only this rank raised it, and other ranks may be waiting for it in a collective.
    """

    def __init__(self, message: str, *, already_reported: bool = False, rank_local: bool = False) -> None:
        super().__init__(message)
        self.already_reported, self.rank_local = already_reported, rank_local

    @classmethod
    def on_all_ranks(cls, message: str) -> Self:
        """The same error on every rank, which only rank 0 prints."""
        return cls(message, already_reported=not is_rank0())


class RefusedFileError(OSError):
    """A file that is refused before it is read: `strerror` says why, and `filename` is its path."""

    def __str__(self) -> str:
        return str(self.strerror)


class NotTextError(RefusedFileError, ValueError):
    """A file that is no text in its encoding: refused like others, and damaged for those who parse it."""


def require(holds: bool, message: str) -> None:
    """Raise `UserError(message)` unless `holds`."""
    if not holds:
        raise UserError(message)


def in_short(value: object) -> str:
    """A value in a message: as it is written in Python if that is short, else its type."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE and "\n" not in text else f"a value of type {type(value).__name__}"


def path_text(value: object, takes: str) -> str:
    """The text of a name or path that a caller in Python gave.

    Args:
        value: what was given.
        takes: the beginning of the message, such as "data is a folder".

    Raises:
        UserError: it is neither text nor a path.
    """
    if isinstance(value, str | os.PathLike) and isinstance(text := os.fspath(value), str) and "\0" not in text:
        return text
    raise UserError(f"{takes}, not {in_short(value)}")


def path_texts(value: object, takes: str) -> list[str]:
    """The texts of several names or paths, given one by one or as one; arguments and error are those of `path_text`."""
    return [path_text(each, takes) for each in one_or_several(value)]


def one_or_several(value: object) -> list[object]:
    """The values of an iterable; a list of one of anything else, of text, of a path and of a mapping."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | os.PathLike | Mapping):
        return list(value)
    return [value]


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def one_line(error: object) -> str:
    """An error's whole text as one line of at most 300 characters, or its type where it has none."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."


def is_rank0() -> bool:
    """Whether this process is, or will be, rank 0 of a run: the one that prints.

    So does one whose rank is not a number: it is in no run, and its error must not be lost.
    """
    number = os.environ.get("RANK", "0")
    return "WORLD_SIZE" not in os.environ or not number.isdecimal() or not number.strip("0")


def nearest_name(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean 'X'?" for the valid name closest to `name`, or an empty string."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def nearest_path(path: str | os.PathLike[str]) -> str:
    """Return "; did you mean 'X'?" for the file or folder whose name is closest to a missing one's, or an empty string.

    Args:
        path: one that does not exist; its first part that does not is compared with what is beside it.
    """
    missing = Path(path)
    while missing.parent != missing and not missing.parent.is_dir():
        missing = missing.parent
    try:
        with os.scandir(missing.parent) as entries:
            beside = [entry.name for entry in itertools.islice(entries, MOST_BESIDE) if not entry.name.startswith(".")]
    except OSError:
        return ""
    if missing.name in beside:  # it exists, but is something else than was asked for, such as a file
        return ""
    close = difflib.get_close_matches(missing.name, beside, n=1, cutoff=0.7)
    return f"; did you mean '{missing.parent / close[0]}'?" if close else ""


def printable(text: str) -> str:
    """A text that is safe to print: what could control a terminal or mislead its reader is escaped.

    File names may hold control characters, marks that change the direction of writing, and bytes that are not UTF-8.
    The escapes are those of JSON, so that a JSON text stays valid.
    """
    if text.isprintable():
        return text
    return "".join(
        _escaped(char) if char not in _SHOWN and unicodedata.category(char) in ("Cc", "Cf", "Cs") else char
        for char in text
    )


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def as_user_error(error: OSError) -> UserError | None:
    """Turn an error of the file system into the user's error, or return None where it may be a bug of the program.

    Before Python 3.14 even `Path.exists` raises OSError where a parent folder cannot be entered, so any use of a path
    that the user gave can end here.
    """
    if isinstance(error, RefusedFileError):
        return UserError(f"{error.filename}: {error.strerror}")
    if error.errno not in _REMEDIES:
        return None
    if isinstance(error.filename, str | bytes | os.PathLike):
        return UserError(f"{os.fsdecode(error.filename)}: {error.strerror}: {_REMEDIES[error.errno]}")
    # A write to an open file names no path. Only these errors must come from a disk.
    return UserError(f"{error.strerror}: {_ROOM}") if error.errno in NO_ROOM else None


def with_remedy(error: OSError) -> str:
    """The system's reason, and what to do about it where that is known."""
    reason, remedy = error.strerror or str(error), _REMEDIES.get(error.errno or 0)
    return f"{reason}: {remedy}" if remedy else reason


def print_error(program: str, error: UserError) -> int:
    """Print a user's error as one line on stderr, unless another process does, and return the exit code."""
    if not error.already_reported:
        message = printable(" ".join(str(error).splitlines()))
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 :]}"
        print(f"{program}: error: {message}", file=sys.stderr)
    return USER_ERROR


def _out_of_memory(error: Exception) -> UserError | None:
    """The user's error where memory or threads cannot be had, or None."""
    reason = _OUT_OF_MEMORY.search(str(error))
    if reason is None and not isinstance(error, MemoryError):
        return None
    return UserError(f"out of memory{f' ({reason[0]})' if reason else ''}: {_REMEDIES[errno.ENOMEM]}")


def user_error_of(error: Exception) -> UserError | None:
    """The user's error that an exception is or stands for, or None where it may be a bug of the program."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, OSError):
        return as_user_error(error)
    return _out_of_memory(error) if isinstance(error, MemoryError | RuntimeError | ImportError) else None


def run_program(program: str, main: Callable[[], int]) -> int:
    """Run a command line program's `main`, turning a user's error into one line on stderr and exit code 2."""
    try:
        code = main()
        if sys.stdout is not None:  # None where the program was started with stdout closed
            sys.stdout.flush()  # at exit it would be too late to catch a closed pipe
        return code
    except UserError as error:
        return print_error(program, error)
    except BrokenPipeError:
        # The reader of our output has closed the pipe (`| head`), not an error. Discard what is still buffered, or
        # Python complains when it flushes at exit.
        devnull = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(devnull, stream.fileno())
        return 0
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        if (user_error := user_error_of(error)) is None:
            raise
        return print_error(program, user_error)
    except KeyboardInterrupt:
        if is_rank0():
            print(f"\n{program}: interrupted", file=sys.stderr)
        return 130
