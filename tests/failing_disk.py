"""A disk that is full, or a power cut, at the n-th thing that is written: for tests of what is left behind."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from excb.errors import UserError
from excb.files import atomic

_CHANGES: tuple[tuple[Any, str], ...] = (
    (os, "fsync"),
    (Path, "mkdir"),
    (Path, "rename"),
    (Path, "replace"),
    (Path, "write_bytes"),
    (Path, "write_text"),
    (atomic, "_exchange"),
)


def _failing(
    original: Callable[..., Any], name: str, asked: list[str], step: int, failure: BaseException
) -> Callable[..., Any]:
    def change(*arguments: Any, **keywords: Any) -> Any:
        asked.append(name)
        if len(asked) != step:
            return original(*arguments, **keywords)
        if name.startswith("write"):
            with Path.open(arguments[0], "wb") as stream:
                stream.write(b"half of it")
        raise failure

    return change


@contextmanager
def failing_at(step: int, *, cuts_power: bool) -> Iterator[list[str]]:
    """Let the block's change number `step`, from 1, fail; a file is then half written.

    Gives the changes that were asked for. The block must end in a UserError that tells of the full disk; after a cut
    of the power nothing is cleaned up and nobody is told.
    """
    asked: list[str] = []
    failure = SystemExit("power cut") if cuts_power else OSError(errno.ENOSPC, "No space left on device")
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in _CHANGES:
            patch.setattr(owner, name, _failing(getattr(owner, name), name, asked, step, failure))
        if cuts_power:
            patch.setattr(atomic, "_remove", lambda _path: None)
        try:
            yield asked
        except SystemExit as error:
            if error is not failure:
                raise
        except UserError as error:
            if cuts_power or "No space left on device" not in str(error):
                raise
        else:
            assert len(asked) < step, f"nobody heard that {asked[step - 1]} failed"


def names(folder: Path) -> list[str]:
    """The names in a folder."""
    return sorted(path.name for path in folder.iterdir())
