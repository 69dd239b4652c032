"""The list of what the feature cache holds, and its deletion; neither imports torch."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from excb.errors import UserError
from excb.files import json_text
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
