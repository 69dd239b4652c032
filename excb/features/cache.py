"""Features cached on disk in shards: addressed by everything they depend on, written atomically, checked when read."""

import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import BaseFileLock
from torch import Tensor

from excb.errors import UserError, require
from excb.features.listing import META
from excb.files import json_text, npy
from excb.files.atomic import lock_of, new_file
from excb.files.foreign import read_bytes
from excb.files.locks import STALLED as STALLED_SECONDS
from excb.files.locks import acquire

SHARD_BYTES = 64 * 2**20
KEEP_SECONDS = 10.0  # at most so often, the rows of an unfinished shard are kept
CLIPPED = "clipped.json"  # numbers of the images with values outside their set's range
SRGB = "srgb"  # an empty file: these features honour the images' colour profiles
CHECKSUMS = "checksums.json"  # of the shards that are there, until meta.json has them
_ADVICE = "name a folder elsewhere in EXCB_CACHE"


class CachedFeatures:
    """Features [N, D] float32 of a set in its order; shards are memory-mapped and read when needed.

    Rows may share the file's memory map: do not change them in place.
    """

    def __init__(self, shards: Sequence[np.ndarray]) -> None:
        self._shards = shards
        self.width = int(shards[0].shape[1])

    def __len__(self) -> int:
        """N, the number of images."""
        return sum(map(len, self._shards))

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows [stop - start, D]; nothing is copied where one shard holds them."""
        size = len(self._shards[0])
        parts = [
            torch.from_numpy(self._shards[number][max(0, start - number * size) : stop - number * size])
            for number in range(start // size, -(-min(stop, len(self)) // size))
        ]
        return parts[0] if len(parts) == 1 else torch.cat([torch.empty(0, self.width), *parts])

    def take(self, numbers: Tensor) -> Tensor:
        """Copy the rows of images with these numbers, [n] int64 on the CPU -> [n, D]; only their pages are read."""
        size, wanted = len(self._shards[0]), numbers.numpy()
        rows = np.empty((len(wanted), self.width), np.float32)
        for shard in np.unique(wanted // size):
            here = wanted // size == shard
            rows[here] = self._shards[shard][wanted[here] - shard * size]
        return torch.from_numpy(rows)

    def parts(self) -> Iterator[Tensor]:
        """All rows in order, shard by shard, each [n, D]."""
        yield from map(torch.from_numpy, self._shards)

    def all(self) -> Tensor:
        """All rows [N, D]; several shards are copied into N x D x 4 bytes of memory."""
        return self.rows(0, len(self))


class FeatureStore:
    """The features of one set on disk: NNNNN.npy for every shard, and meta.json once all are written.

    Every shard's checksum is that of the rows as they were computed, and on the disk before the shard is: damage is
    found at any time, also after an interruption. The rows of an unfinished shard are kept in NNNNN.part.npz, whose
    format holds a checksum.

    Args:
        folder: of this set only.
        shards: the images of every shard.
        width: D.
    """

    def __init__(self, folder: Path, shards: Sequence[range], width: int) -> None:
        self.folder, self._shards, self._width = folder, shards, width
        self._written: dict[int, int] = {}  # checksums by the numbers of the shards that are there
        self._kept_at = time.monotonic()  # when rows were last written

    def file(self, number: int) -> Path:
        """A shard's file."""
        return self.folder / f"{number:05}.npy"

    def read(self, number: int) -> np.ndarray | None:
        """A shard's rows, memory-mapped, or None if it is missing or damaged."""
        try:
            rows = npy.mapped_npy(self.file(number))  # copied on write: torch needs writable memory
        except npy.DAMAGE:
            return None
        return rows if rows.dtype == np.float32 and rows.shape == (len(self._shards[number]), self._width) else None

    def missing(self, warn: Callable[[str], None]) -> list[int]:
        """Numbers of the shards to compute; `warn` gets a message for each damaged one. The others count as written."""
        numbers = range(len(self._shards))
        self._written = {}
        try:
            checksums = self._checksums()
        except (OSError, ValueError, LookupError, TypeError):  # without checksums no shard can be trusted
            name = META if self.finished() else CHECKSUMS
            warn(f"{self.folder / name} is damaged: these features are computed again")
            return list(numbers)
        missing = []
        for number in numbers:
            rows = self.read(number)
            if rows is not None and _checksum(rows) == checksums.get(number):
                self._written[number] = checksums[number]
            else:
                missing.append(number)
                if self.file(number).exists():
                    wrong = "is damaged" if number in checksums else "has no checksum"  # as older versions left it
                    warn(f"{self.file(number)} {wrong}: its features are computed again")
        return missing

    def _checksums(self) -> dict[int, int]:
        """The checksums of the shards that were written, by their numbers."""
        if self.finished():
            checksums = json_text.parse(read_bytes(self.folder / META))["crc32"]
            if not isinstance(checksums, list) or len(checksums) != len(self._shards):
                raise ValueError("not one checksum for each shard")
            return dict(enumerate(checksums))
        try:
            checksums = json_text.parse(read_bytes(self.folder / CHECKSUMS))
        except FileNotFoundError:
            return {}
        if not isinstance(checksums, dict):
            raise TypeError("no table of checksums")
        return {int(number): checksum for number, checksum in checksums.items()}

    def of_profiles(self, has_profiles: Callable[[], bool]) -> bool:
        """Whether the features are right for images with colour profiles, which versions before 2.3 ignored.

        Older ones are, where the images have none but sRGB; `has_profiles` reads all headers to tell, once.
        """
        if not self.folder.is_dir() or (self.folder / SRGB).exists():
            return True
        if has_profiles():
            return False
        with suppress(OSError):  # a cache that is only read is asked again
            (self.folder / SRGB).touch()
        return True

    def lock(self, note: Callable[[str], None]) -> BaseFileLock | None:
        """Wait until no other process computes these features, and keep others from it until `release`.

        The system releases it however its process ends. None where the disk has no locks, or may not be written.

        Args:
            note: called with what is waited for.

        Raises:
            UserError: the other process has written nothing for `STALLED_SECONDS`.
        """
        try:
            return acquire(
                lock_of(self.folder),
                f"computes the same features, in {self.folder}",
                advance=self._changed,
                patience=STALLED_SECONDS,
                note=note,
                advice=_ADVICE,
            )
        except (OSError, NotImplementedError):
            return None

    def _changed(self) -> list[int]:
        """Times of the last changes of the files, which show that the process that computes them advances."""
        try:
            return sorted(file.stat().st_mtime_ns for file in self.folder.iterdir())
        except OSError:  # the other process renames or removes one
            return []

    def discard(self) -> None:
        """Delete the features. Raises UserError if a file cannot be deleted."""
        try:
            shutil.rmtree(self.folder)
        except OSError as error:
            raise _unwritable(self.folder, str(error)) from None

    def finished(self) -> bool:
        """Whether all shards were written; some may have been damaged since."""
        return (self.folder / META).is_file()

    def start(self, missing: Sequence[int]) -> None:
        """Prepare the folder for the shards that `missing` named.

        Raises:
            UserError: the folder cannot be written, or the disk has too little room.
        """
        wanted = sum(len(self._shards[number]) for number in missing) * self._width * 4
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / SRGB).touch()
            self._write_checksums()
            for file in [self.folder / META, *map(self.file, missing)]:
                file.unlink(missing_ok=True)
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            raise _unwritable(self.folder, str(error)) from None
        if free < wanted:
            raise _unwritable(self.folder, f"{wanted / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB free")

    def write(self, number: int, rows: np.ndarray) -> None:
        """Write a shard, and its checksum before it.

        Raises:
            UserError: the disk is full or the folder cannot be written.
        """
        self._written[number] = _checksum(rows)
        self._write_checksums()
        with new_file(self.file(number), advice=_ADVICE) as file, file.open("wb") as stream:
            np.save(stream, rows, allow_pickle=False)
        self._part(number).unlink(missing_ok=True)
        self._kept_at = time.monotonic()

    def write_clipped(self, images: Sequence[int]) -> None:
        """Keep which images were clipped, before their rows are kept.

        Raises:
            UserError: the disk is full or the folder cannot be written.
        """
        if images:
            json_text.write_json([*images], self.folder / CLIPPED, indent=None, advice=_ADVICE)

    def clipped(self) -> list[int]:
        """The numbers that `write_clipped` kept; none where the file is damaged."""
        try:
            numbers = json_text.parse(read_bytes(self.folder / CLIPPED))
        except (OSError, ValueError):
            return []
        return [n for n in numbers if type(n) is int and n >= 0] if isinstance(numbers, list) else []

    def keep(self, number: int, rows: Sequence[Tensor]) -> None:
        """Keep the first rows of an unfinished shard, if nothing was written for `KEEP_SECONDS`.

        Args:
            number: of the shard.
            rows: [n, D] each; together they are its first rows.

        Raises:
            UserError: the disk is full or the folder cannot be written.
        """
        if time.monotonic() - self._kept_at < KEEP_SECONDS:
            return
        with new_file(self._part(number), advice=_ADVICE) as file, file.open("wb") as stream:
            np.savez(stream, rows=torch.cat([*rows]).numpy())
        self._kept_at = time.monotonic()

    def kept(self, missing: Sequence[int], warn: Callable[[str], None]) -> dict[int, Tensor]:
        """The first rows [n, D] of missing shards, as far as `keep` kept them; `warn` reports damage."""
        kept = {}
        for number in missing:
            if (file := self._part(number)).exists():
                try:
                    rows = npy.read_npz(file)["rows"]
                    if not (rows.dtype == np.float32 and rows.shape[1:] == (self._width,)):
                        raise ValueError("other rows")
                    kept[number] = torch.from_numpy(rows[: len(self._shards[number])])
                except npy.DAMAGE:
                    warn(f"{file} is damaged: its features are computed again")
        return kept

    def _write_checksums(self) -> None:
        json_text.write_json(self._written, self.folder / CHECKSUMS, indent=None, advice=_ADVICE)

    def _part(self, number: int) -> Path:
        return self.folder / f"{number:05}.part.npz"

    def finish(self, description: dict[str, Any]) -> None:
        """Write meta.json, which marks the features as complete.

        Raises:
            UserError: the disk is full or the folder cannot be written.
        """
        meta = {
            "images": sum(map(len, self._shards)),
            "width": self._width,
            "crc32": [self._written[number] for number in range(len(self._shards))],
            "made_from": description,
        }
        json_text.write_json(meta, self.folder / META, advice=_ADVICE)
        (self.folder / CHECKSUMS).unlink(missing_ok=True)

    def open(self) -> CachedFeatures:
        """The complete features.

        Raises:
            UserError: this rank does not see the files that rank 0 has written.
        """
        shards = self._intact_shards()
        require(
            len(shards) == len(self._shards),
            f"no features in {self.folder}: the cache must lie on a disk that all processes see",
        )
        return CachedFeatures(shards)

    def _intact_shards(self) -> list[np.ndarray]:
        return [rows for number in range(len(self._shards)) if (rows := self.read(number)) is not None]


def _checksum(rows: np.ndarray) -> int:
    return zlib.crc32(rows.data)


def _unwritable(place: Path, reason: str) -> UserError:
    return UserError(f"cannot write features to {place} ({reason}); {_ADVICE}")
