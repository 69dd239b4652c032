"""The index of a set of tar shards: made once, cached, and checked against the shards at every start."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from excb.console import PLAIN_SECONDS, duration, plural
from excb.errors import UserError
from excb.files import json_text, npy
from excb.files.atomic import lock_of, new_file
from excb.files.locks import STALLED, acquire, beat, beats
from excb.images.formats.known import EXTRAS
from excb.images.tars.table import MOST_BYTES, TarTable, read_table
from excb.remote import byte_ranges
from excb.remote.home import cache_root

VERSION = 3  # raise it when the same shards give another index
FOLDER = "shards"  # in the cache
_ARRAYS = ("counts", "offsets", "sizes", "labels")  # of a `ShardIndex`


@dataclass(frozen=True)
class ShardIndex:
    """Where the N images of S shards are, shard after shard, in arrays whose memory worker processes share."""

    stamps: tuple[str, ...]  # of every shard, from `excb.remote.byte_ranges.stamps`
    counts: np.ndarray  # images of every shard, int64 [S]
    names: bytes  # of the members, UTF-8, a zero byte after each
    offsets: np.ndarray  # of the images' first bytes in their shards, int64 [N]
    sizes: np.ndarray  # in bytes, int64 [N]
    labels: np.ndarray  # index in `label_names`, or -1 for an image without label file, int64 [N]
    label_names: tuple[str, ...]  # the contents of the label files
    skipped: tuple[dict[str, int], ...]  # number of members skipped in every shard, by kind

    def tables(self) -> list[TarTable]:
        """The table of every shard."""
        names = self.names.decode(errors="surrogateescape").split("\0")
        labels = [self.label_names[code] if code >= 0 else None for code in self.labels.tolist()]
        offsets, sizes, ends = self.offsets.tolist(), self.sizes.tolist(), self.counts.cumsum().tolist()
        parts = [slice(end - count, end) for end, count in zip(ends, self.counts.tolist(), strict=True)]
        return [
            TarTable(names[part], offsets[part], sizes[part], labels[part], Counter(skipped))
            for part, skipped in zip(parts, self.skipped, strict=True)
        ]


def index_of(places: Sequence[str], note: Callable[[str], None]) -> ShardIndex:
    """The index of shards: the cached one if no shard has changed, else with the changed shards indexed again.

    If several processes of one machine ask at once, one builds it and the others wait.

    Args:
        places: files or URLs.
        note: called with messages about what takes time.

    Raises:
        UserError: a shard cannot be found or read, or the other process has read none for half an hour.
    """
    opened = tuple(extra.name for extra in EXTRAS if extra.register())  # with another extra, other members are images
    key = hashlib.sha256(repr((VERSION, tuple(places), opened)).encode()).hexdigest()[:32]
    file = cache_root() / FOLDER / f"{key}.npz"
    place, lock = lock_of(file), None
    with suppress(OSError, NotImplementedError):  # writing the index reports it later; some disks have no locks
        lock = acquire(place, "indexes the same shards", advance=partial(beats, place), patience=STALLED, note=note)
    try:
        return _index_of(places, file, note)
    finally:
        if lock is not None:
            lock.release()


def _index_of(places: Sequence[str], file: Path, note: Callable[[str], None]) -> ShardIndex:
    stamps = byte_ranges.stamps(list(places))
    cached = _load(file, len(places), note)
    if cached is not None and cached.stamps == tuple(stamps):
        return cached
    tables, changed = dict[int, TarTable](), list(range(len(places)))
    if cached is not None:
        changed = [number for number in changed if cached.stamps[number] != stamps[number]]
        tables = dict(enumerate(cached.tables()))
        note(f"{len(changed):,} of {plural(len(places), 'shard')} changed, such as {places[changed[0]]}")
    read = _read_all([places[number] for number in changed], note, lock_of(file))
    tables |= zip(changed, read, strict=True)
    index = _pack(stamps, [tables[number] for number in range(len(places))])
    if byte_ranges.stamps(list(places)) != stamps:
        raise UserError(f"shards changed while they were indexed: wait until {places[0]} and the others are whole")
    try:
        _save(index, file)
    except UserError as error:
        note(f"the index of the shards is not kept: {error}; name a folder elsewhere in EXCB_CACHE")
    return index


def _read_all(places: Sequence[str], note: Callable[[str], None], lock: Path) -> list[TarTable]:
    """Index shards, several remote ones at once, since they mostly wait for the network.

    Processes that wait for the lock see that this one advances.
    """
    note(f"indexing {plural(len(places), 'shard')}, once")
    start = reported = time.monotonic()
    tables: list[TarTable] = []
    with ThreadPoolExecutor(byte_ranges.ASK_TOGETHER if any(map(byte_ranges.is_remote, places)) else 1) as pool:
        for table in pool.map(_read_one, places):
            tables.append(table)
            beat(lock)
            if (now := time.monotonic()) - reported > PLAIN_SECONDS:
                reported = now
                left = (now - start) / len(tables) * (len(places) - len(tables))
                note(f"indexing shards: {len(tables):,}/{len(places):,}  ETA {duration(left)}")
    return tables


def _read_one(place: str) -> TarTable:
    try:
        with byte_ranges.open_sequential(place) as stream:
            return read_table(stream, place)
    except byte_ranges.failures() as error:
        raise UserError(f"cannot read {place} ({byte_ranges.reason(error)}): check your access to it") from None


def _pack(stamps: Sequence[str], tables: Sequence[TarTable]) -> ShardIndex:
    texts = [label for table in tables for label in table.labels]
    label_names = tuple(sorted({text for text in texts if text is not None}))
    code: dict[str | None, int] = {None: -1} | {text: number for number, text in enumerate(label_names)}
    return ShardIndex(
        tuple(stamps),
        np.array([len(table.names) for table in tables], np.int64),
        "".join(f"{name}\0" for table in tables for name in table.names).encode(errors="surrogateescape"),
        np.array([offset for table in tables for offset in table.offsets], np.int64),
        np.array([size for table in tables for size in table.sizes], np.int64),
        np.array([code[text] for text in texts], np.int64),
        label_names,
        tuple(dict(table.skipped) for table in tables),
    )


def _save(index: ShardIndex, file: Path) -> None:
    """Write an index, uncompressed so that it is read quickly."""
    meta = {"stamps": index.stamps, "label_names": index.label_names, "skipped": index.skipped}
    texts = {"meta": json.dumps(meta).encode(), "names": index.names}
    arrays: dict[str, Any] = {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}
    arrays |= {name: getattr(index, name) for name in _ARRAYS}
    with new_file(file) as partial, partial.open("wb") as stream:
        np.savez(stream, **arrays)


def _load(file: Path, shards: int, note: Callable[[str], None]) -> ShardIndex | None:
    """The index in a file, or None if it is missing or damaged."""
    try:
        stored = npy.read_npz(file)
        meta: dict[str, Any] = json_text.parse(stored["meta"].tobytes())
        index = ShardIndex(
            stamps=tuple(map(str, meta["stamps"])),
            names=stored["names"].tobytes(),
            label_names=tuple(map(str, meta["label_names"])),
            skipped=tuple(map(dict, meta["skipped"])),
            **{name: stored[name] for name in _ARRAYS},
        )
        size = (int(index.counts.sum()),)
        arrays = (index.offsets, index.sizes, index.labels)
        complete = (
            len(index.stamps) == len(index.counts) == len(index.skipped) == shards
            and all(array.shape == size and array.dtype == np.int64 for array in arrays)
            and index.names.count(b"\0") == size[0]
            and int(index.labels.max(initial=-1)) < len(index.label_names)
            and int(index.offsets.min(initial=0)) >= 0
            and 0 <= int(index.sizes.min(initial=0)) <= int(index.sizes.max(initial=0)) <= MOST_BYTES
        )
        if not complete:
            raise ValueError("its parts do not fit together")
    except FileNotFoundError:
        return None
    except npy.DAMAGE as error:
        note(f"{file} is damaged ({type(error).__name__}: {error}): the shards are indexed again")
        return None
    return index
