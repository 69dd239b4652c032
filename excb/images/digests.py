"""The table of digests: short facts about files, kept by the files' stamps, so that an unchanged file is read once.

A digest is any short text of bytes that follows from a file's contents: a hash, a small picture, facts of its header.
The table is one SQLite database in the cache, which several processes may read and write at once. It is a help and
never a condition: on a full disk, or where the cache cannot be written, files are read again.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

from excb.errors import UserError
from excb.images.decoding import BrokenImageError, stored_and_upright_size
from excb.images.image_set import ImageSet
from excb.images.pixels import Source
from excb.images.subset import Subset
from excb.remote.home import cache_root

FILE = "digests.sqlite"
UNSETTLED = 2.0  # seconds since a file's last change, within which it may change again and keep its stamp
MOST_BYTES = 2**30  # of the table; then it is emptied
PATIENCE = 5.0  # seconds to wait for other writers

T = TypeVar("T")
Reader = Callable[[int], bytes | None]
Each = Callable[[Callable[[int], Any], Sequence[int]], Iterable[Any]]


def digests_of(
    kind: str,
    files: Sequence[Path | str | None],
    read: Reader,
    *,
    each: Each = map,
    statuses: Sequence[os.stat_result | None] | None = None,
) -> list[bytes | None]:
    """A digest of each file: from the table where the file has not changed, else read and kept.

    Args:
        kind: the digest's name, with a version that changes when its computation does.
        files: None is not a file, and read each time.
        read: the digest of the file of this number; None if it has none, which is not kept.
        each: calls `read` for some numbers, in their order.
        statuses: of the files, as `status_of` has just returned them; by default it is called here.
    """
    return [found for (found,) in _digests([kind], files, lambda number: [read(number)], each, statuses=statuses)]


def keep_digests(
    kinds: Sequence[str], files: Sequence[Path | str | None], read: Callable[[int], Sequence[bytes | None]]
) -> None:
    """Fill the table with digests of several kinds: a file that lacks any of them is read once for all.

    Args:
        kinds: as `digests_of` takes them.
        files: None is not a file, and left out, as is a file that changed so lately that nothing of it is kept.
        read: the digests of the file of this number, one of each kind; those that are None are not kept.
    """
    _digests(kinds, files, read, map, unsettled=False)


def _digests(
    kinds: Sequence[str],
    files: Sequence[Path | str | None],
    read: Callable[[int], Sequence[bytes | None]],
    each: Each,
    *,
    unsettled: bool = True,
    statuses: Sequence[os.stat_result | None] | None = None,
) -> list[Sequence[bytes | None]]:
    """The digests of each file, one of each kind; with `unsettled`, of those as well that cannot be kept."""
    before = time.time() - UNSETTLED
    stamps = [_settled_stamp(status, before) for status in statuses or map(status_of, files)]
    known = [_recall(kind, {stamp for stamp in stamps if stamp}) for kind in kinds]
    found: list[Sequence[bytes | None]] = [[kept.get(stamp) if stamp else None for kept in known] for stamp in stamps]
    missing = [number for number, digests in enumerate(found) if None in digests and (stamps[number] or unsettled)]
    for number, digests in zip(missing, each(read, missing), strict=True):
        found[number] = digests
    new = {
        stamp: found[number]
        for number in missing
        if (stamp := stamps[number]) and found[number].count(None) < len(kinds) and not _changed(files[number], stamp)
    }
    for place, kind in enumerate(kinds):
        if digests_of_kind := {stamp: value for stamp, values in new.items() if (value := values[place]) is not None}:
            _keep(kind, digests_of_kind)
    return found


def upright_sizes(files: Sequence[Path | str | None], source: Callable[[int], Source]) -> list[tuple[int, int] | None]:
    """Width and height of images as they are opened; None of those that cannot be read, which their use reports.

    Args:
        files: as `digests_of` takes them.
        source: the image of this number as it is stored.
    """

    def read(number: int) -> bytes | None:
        try:
            return "{} {}".format(*stored_and_upright_size(source(number))[1]).encode()
        except (BrokenImageError, OSError, ValueError):  # ValueError: a zero byte in the name
            return None

    sizes: list[tuple[int, int] | None] = []
    for found in digests_of("upright size 1", files, read):
        width, _, height = (found or b"").partition(b" ")
        sizes.append((int(width), int(height)) if width.isdigit() and height.isdigit() else None)
    return sizes


def files_of(images: Any, numbers: Sequence[int]) -> list[Path | str | None]:
    """The files of some images of a set; None for one that has no file of its own, such as a member of a shard."""
    if isinstance(images, Subset):
        return files_of(images.images, images.indices[list(numbers)].tolist())
    if isinstance(images, ImageSet):  # of a million files, text is made in a tenth of the time of paths
        return [os.path.join(images.root, images.paths[number]) for number in numbers]  # noqa: PTH118
    file = getattr(images, "file", lambda _number: None)
    return [file(number) for number in numbers]


def status_of(file: Path | str | None) -> os.stat_result | None:
    """A file's size, times and inode; None if it is missing."""
    try:
        return None if file is None else os.stat(file)  # noqa: PTH116 - a million times
    except (OSError, ValueError):  # ValueError: a zero byte in the name
        return None


def _settled_stamp(status: os.stat_result | None, settled_before: float) -> str | None:
    """A text that changes when the file does: inode, size, times of change and device; its path may change.

    None if the file is missing, empty, or was changed so lately that it could change again within the resolution of
    its times (Git calls such files racy).
    """
    if status is None or not status.st_size or max(status.st_mtime, status.st_ctime) >= settled_before:
        return None
    # The inode comes first: files of one folder are beside each other in the table.
    return f"{status.st_ino:x} {status.st_size:x} {status.st_mtime_ns:x} {status.st_ctime_ns:x} {status.st_dev:x}"


def _changed(file: Path | str | None, stamp: str) -> bool:
    return _settled_stamp(status_of(file), time.time()) != stamp


def table_file() -> Path:
    """The table's file, which need not exist."""
    return cache_root() / FILE


def delete_digests() -> int:
    """Delete the table, and return the number of bytes freed. Raises UserError if it cannot be deleted."""
    file = table_file()
    try:
        size = file.stat().st_size if file.exists() else 0
        file.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot delete {file} ({error}): delete it by hand") from None
    return size


def _recall(kind: str, stamps: Iterable[str]) -> Mapping[str, bytes]:
    """The digests that the table has of files with these stamps."""
    wanted = "SELECT stamp, digest FROM json_each(?) JOIN digests ON stamp = value WHERE kind = ?"
    rows = _in_table(lambda table: table.execute(wanted, (json.dumps(list(stamps)), kind)).fetchall())
    return {stamp: digest for stamp, digest in rows or () if isinstance(digest, bytes)}


def _keep(kind: str, digests: Mapping[str, bytes]) -> None:
    rows = [(stamp, kind, digest) for stamp, digest in digests.items()]
    columns = "stamp TEXT, kind TEXT, digest BLOB, PRIMARY KEY (stamp, kind)"

    def write(table: Any) -> None:
        table.execute(f"CREATE TABLE IF NOT EXISTS digests ({columns}) WITHOUT ROWID")
        if _held(table) > MOST_BYTES:
            table.execute("DELETE FROM digests")
        table.executemany("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", rows)
        table.commit()

    _in_table(write, new=True)


def _held(table: Any) -> int:
    """Bytes of the pages that hold rows: emptied pages stay in the file, for new rows."""
    pages, free, size = (
        table.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _in_table(work: Callable[[Any], T], *, new: bool = False) -> T | None:
    """The answer of `work` on the open table; None where that fails. A damaged table is deleted.

    Args:
        work: called with the connection.
        new: make the table where there is none.
    """
    try:
        import sqlite3  # here: some builds of Python lack it
    except ImportError:
        return None
    try:
        file = table_file()
        if new:
            file.parent.mkdir(parents=True, exist_ok=True)
        elif not file.exists():
            return None
        with closing(sqlite3.connect(file, timeout=PATIENCE)) as table:
            # A view in the table's place may have rows without end.
            if table.execute("SELECT 1 FROM sqlite_master WHERE name != 'digests' OR type != 'table'").fetchone():
                raise sqlite3.DatabaseError("it holds more than the table")
            return work(table)
    except (sqlite3.OperationalError, OSError, UserError):  # locked, read-only, full, no home: work without
        return None
    except sqlite3.DatabaseError:  # damaged
        with suppress(OSError):
            file.unlink(missing_ok=True)
        return None
