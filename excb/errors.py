"""Errors that are the user's to mend: one clear line each, exit code 2, no traceback."""

import difflib
import errno
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable
from typing import Self

LONGEST_LINE = 2000  # characters of an error; what to do stands at its end, what is wrong at its beginning
USER_ERROR = 2  # exit code of every mistake that the user can mend
_SHOWN = "\n\t\u200c\u200d"  # joiners and non-joiners of letters belong to words of several scripts

# What a file system may refuse in any program at any path, and what its user can do about it.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_OTHER_PLACE = "let it be read and written, or name another place"
_ROOM = "make room, or name a place on another disk"
_DISK = "see what its disk or file server has, then start again"
_REMEDIES = {
    errno.EACCES: _OTHER_PLACE,
    errno.EPERM: _OTHER_PLACE,
    errno.EROFS: "name a place that can be written",
    **dict.fromkeys(NO_ROOM, _ROOM),
    errno.ENAMETOOLONG: "name something shorter",
    errno.EIO: _DISK,
    errno.ESTALE: _DISK,
    errno.EMFILE: "let more files be open at a time (`ulimit -n`)",
    errno.ENFILE: "let more files be open at a time (`ulimit -n`)",
}


class UserError(Exception):
    """A mistake the user can mend. The message is one line that says what is wrong and what to do.

    Args:
        message: the line.
        already_reported: another process of the run prints it.
        rank_local: only this rank knows of it; other ranks may be waiting for it in a collective.
    """

    def __init__(self, message: str, *, already_reported: bool = False, rank_local: bool = False) -> None:
        super().__init__(message)
        self.already_reported, self.rank_local = already_reported, rank_local

    @classmethod
    def on_all_ranks(cls, message: str) -> Self:
        """The same error on every rank, which only rank 0 prints."""
        return cls(message, already_reported=not is_rank0())


def require(holds: bool, message: str) -> None:
    """Raise `UserError(message)` unless `holds`."""
    if not holds:
        raise UserError(message)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def is_rank0() -> bool:
    """Whether this process is, or will be, process 0 of those that were started together: the one that talks."""
    return os.environ.get("RANK", "0") == "0"


def nearest_name(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean 'X'?" for the valid name closest to `name`, or an empty string."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def printable(text: str) -> str:
    """A text as any terminal takes it: what names of files may hold to command a terminal, or to mislead, is escaped.

    That is control characters, those that turn the direction of writing, and bytes that are no UTF-8. Escapes are those
    of JSON, so that a JSON text stays one.
    """
    if text.isprintable():
        return text
    return "".join(
        _escaped(sign) if sign not in _SHOWN and unicodedata.category(sign) in ("Cc", "Cf", "Cs") else sign
        for sign in text
    )


def _escaped(sign: str) -> str:
    units = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def as_user_error(error: OSError) -> UserError | None:
    """What the file system refused as the user's error; None where it may be a mistake of the program.

    Path.exists and its like raise OSError before Python 3.14 where a folder on the way may not be entered, so that any
    look at a path of the user's can end like this.
    """
    if error.errno not in _REMEDIES:
        return None
    if isinstance(error.filename, str | bytes | os.PathLike):
        return UserError(f"{os.fsdecode(error.filename)}: {error.strerror}: {_REMEDIES[error.errno]}")
    # Writes to an open file name none, and only these errors cannot come of anything but a disk.
    return UserError(f"{error.strerror}: {_ROOM}") if error.errno in NO_ROOM else None


def print_error(program: str, error: UserError) -> int:
    """Print a user's error as one line on stderr, unless another process does, and give the exit code."""
    if not error.already_reported:
        line = printable(" ".join(str(error).splitlines()))
        if len(line) > LONGEST_LINE:
            line = f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"
        print(f"{program}: error: {line}", file=sys.stderr)
    return USER_ERROR


def run(program: str, main: Callable[[], int]) -> int:
    """Run a command line program's `main`, turning the user's errors into one line on stderr and exit code 2."""
    try:
        code = main()
        if sys.stdout is not None:  # as where the program was started with it closed
            sys.stdout.flush()  # not first at exit, where a closed pipe could not be caught
        return code
    except UserError as error:
        return print_error(program, error)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing to report, and nowhere to report it. What is still
        # buffered must go nowhere as well, or Python complains when it flushes at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        return 0
    except OSError as error:
        if (refusal := as_user_error(error)) is None:
            raise
        return print_error(program, refusal)
    except KeyboardInterrupt:
        if is_rank0():
            print(f"\n{program}: interrupted", file=sys.stderr)
        return 130
