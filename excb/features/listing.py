"""The list of what the feature cache holds, and its deletion; neither imports torch."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from excb.errors import UserError
from excb.files import json_text
from excb.files.atomic import is_unfinished
from excb.files.foreign import read_bytes

FOLDER, META = "features", "meta.json"


@dataclass(frozen=True)
class CacheEntry:
    """Facts about one set's features in the cache; None if they are not complete."""

    folder: Path
    bytes: int
    complete: bool
    images: int | None
    architecture: str | None
    kind: str | None


@dataclass(frozen=True)
class UnfinishedFile:
    """A hidden file or folder that a writer has not given its name: the writer is alive, or was killed."""

    path: Path
    bytes: int
    last_change: datetime  # of anything in it, in local time


def unfinished_files(root: Path) -> list[UnfinishedFile]:
    """Files and folders below a folder that writers of any machine have not finished, the oldest first."""
    found = [_unfinished(path) for path in _hidden(root)]
    return sorted((each for each in found if each is not None), key=lambda each: (each.last_change, each.path))


def _hidden(root: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(root):
        yield from (Path(place, name) for name in (*folders, *files) if is_unfinished(name))
        folders[:] = [name for name in folders if not is_unfinished(name)]


def _unfinished(path: Path) -> UnfinishedFile | None:
    """Size and time of one of them; None if it has just taken its name."""
    try:
        facts = [each.lstat() for each in (path, *(path.rglob("*") if path.is_dir() else ()))]
    except OSError:
        return None
    newest = datetime.fromtimestamp(max(each.st_mtime for each in facts)).astimezone()
    return UnfinishedFile(path, sum(each.st_size for each in facts), newest)


def entries(root: Path) -> list[CacheEntry]:
    """The sets in the cache, largest first."""
    sets = []
    for folder in sorted(path for path in (root / FOLDER).glob("*") if path.is_dir()):
        size = sum(file.stat().st_size for file in folder.iterdir())
        try:
            meta = json_text.parse(read_bytes(folder / META))
            made_from = meta["made_from"]
            facts = (meta["images"], made_from["architecture"]["name"], made_from["kind"])
            if not all(isinstance(fact, kind) for fact, kind in zip(facts, (int, str, str), strict=True)):
                raise TypeError("facts of another type")
            sets.append(CacheEntry(folder, size, True, *facts))
        except (OSError, ValueError, LookupError, TypeError):
            sets.append(CacheEntry(folder, size, False, None, None, None))
    return sorted(sets, key=lambda entry: -entry.bytes)


def remove(root: Path) -> int:
    """Delete all features in the cache, and return the number of bytes freed.

    Raises:
        UserError: a file cannot be deleted.
    """
    freed = sum(entry.bytes for entry in entries(root))
    try:
        if (root / FOLDER).is_dir():
            shutil.rmtree(root / FOLDER)
    except OSError as error:
        raise UserError(f"cannot delete {root / FOLDER} ({error}): delete it by hand") from None
    return freed
