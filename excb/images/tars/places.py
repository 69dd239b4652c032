"""Which tar shards a text names: a tar, a folder of tars or a pattern, local or over fsspec."""

import fnmatch
import glob
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from excb.errors import UserError
from excb.files.foreign import is_folder
from excb.images.formats.known import EXTENSIONS
from excb.remote import byte_ranges

MOST_SHARDS = 1_000_000  # that one pattern may stand for
_TAR = re.compile(r"\.(tar(\.\w+)?|tgz|tbz2?|txz)$", re.IGNORECASE)  # compressed ones are refused when they are read
_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")


def is_shards(text: str) -> bool:
    """Whether a text names shards, no folder of images. Raises UserError if it is empty, or remote and unreadable."""
    if not text:
        raise UserError("the place of the images is empty: name a folder, or shards (is a shell variable unset?)")
    if byte_ranges.is_remote(text):
        return True
    return holds_shards(text) if Path(text).is_dir() else names_tars(text)


def names_tars(text: str) -> bool:
    """Whether a text ends in a tar's extension, compressed or not."""
    return _TAR.search(text.partition("?")[0] if byte_ranges.is_remote(text) else text) is not None


def holds_shards(folder: str) -> bool:
    """Whether a folder holds tars and, if local, no folder or image. Raises UserError for unreadable remote ones."""
    if byte_ranges.is_remote(folder):
        return bool(_remote(f"{folder.rstrip('/')}/*.tar*"))
    tars = False
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if is_folder(entry) or entry.name.lower().endswith(EXTENSIONS):
                return False
            tars |= _TAR.search(entry.name) is not None
    return tars


def find_shards(text: str) -> list[str]:
    """The shards that a text names, in order. Raises UserError if there are none."""
    remote = byte_ranges.is_remote(text)
    patterns = [text] if not remote and Path(text).exists() else list(itertools.islice(_braces(text), MOST_SHARDS + 1))
    if len(patterns) > MOST_SHARDS:
        raise UserError(f"{text} stands for more than {MOST_SHARDS:,} shards: correct the numbers in braces")
    places = [place for pattern in patterns for place in (_remote(pattern) if remote else _local(pattern))]
    if not places:
        raise UserError(f"no tar at {text}: name a tar, a folder of tars, or a pattern such as 'DIR/*.tar' in quotes")
    return list(dict.fromkeys(places))


def _braces(text: str) -> Iterator[str]:
    """Expand a shell's braces: {000..146} counts with the digits of its first number, {a,b} lists."""
    braces = _BRACES.search(text)
    if braces is None:
        yield text
        return
    first, last, listed = braces.groups()
    numbers = (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)) if first else None
    for choice in numbers or listed.split(","):
        for rest in _braces(text[braces.end() :]):
            yield text[: braces.start()] + choice + rest


def _local(pattern: str) -> list[str]:
    if Path(pattern).is_dir():
        files = (file for file in Path(pattern).iterdir() if names_tars(file.name) and not file.name.startswith("."))
        return sorted(os.fspath(file.absolute()) for file in files)
    if Path(pattern).exists() or not glob.has_magic(pattern):
        return [os.fspath(Path(pattern).absolute())]
    return sorted(os.fspath(place.absolute()) for place in _matching(Path(pattern)))


def _matching(pattern: Path) -> Iterator[Path]:
    """Like glob.glob, which would take an unreadable folder for an empty one and silently leave out its shards."""
    folder, name = pattern.parent, pattern.name
    for place in _matching(folder) if glob.has_magic(os.fspath(folder)) else [folder]:
        if not glob.has_magic(name):
            yield from [place / name] if (place / name).exists() else []
        elif place.is_dir():
            files = (file for file in place.iterdir() if fnmatch.fnmatchcase(file.name, name))
            yield from (file for file in files if name.startswith(".") or not file.name.startswith("."))


def _remote(pattern: str) -> list[str]:
    """Shards found by fsspec. A `?` in a URL begins a query and is not a pattern."""
    if "*" not in pattern and names_tars(pattern):
        return [pattern]
    try:
        system, path = byte_ranges.filesystem(pattern)
        names = system.glob(path if "*" in path else f"{path.rstrip('/')}/*.tar*")
    except byte_ranges.failures() as error:
        why = byte_ranges.reason(error)
        raise UserError(f"cannot list {pattern} ({why}): check the name, and your access to it") from None
    return sorted(system.unstrip_protocol(name) for name in names if names_tars(name))
