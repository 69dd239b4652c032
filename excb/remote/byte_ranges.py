"""Byte ranges of files, local or wherever fsspec reaches (s3://, https://)."""

import lzma
import os
import sys
import tarfile
import time
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import IO, Any

from excb.console import plural
from excb.errors import UserError, one_line
from excb.files.foreign import open_file

MOST_OPEN = 128  # local files that one process keeps open; systems usually allow it 1,024
PAUSES = (1.0, 4.0)  # seconds before a remote read is tried again
ASK_TOGETHER = 16  # remote files asked about, or indexed, at once
READ_AHEAD = 8 * 2**20  # bytes requested at once while a remote file is read as a whole
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "http": "https", "https": "https"}  # of pyproject.toml
# Fields of a store's report on a file that change with the file.
_CHANGES = (
    *("size", "ETag", "etag", "generation", "md5Hash", "crc32c", "Content-MD5"),
    *("mtime", "created", "updated", "LastModified", "Last-Modified", "last_modified"),
)


def is_remote(place: str) -> bool:
    """Whether a place is a URL, which fsspec reads."""
    return "://" in place


def failures() -> tuple[type[Exception], ...]:
    """The errors that reading a place may raise. Storage libraries have their own, which are not OSErrors."""
    errors = (
        *("aiohttp.ClientError", "azure.core.exceptions.AzureError", "botocore.exceptions.BotoCoreError"),
        *("botocore.exceptions.ClientError", "gcsfs.retry.HttpError", "google.auth.exceptions.GoogleAuthError"),
    )
    parts = [error.rpartition(".") for error in errors]
    own = [getattr(sys.modules[module], name) for module, _, name in parts if module in sys.modules]
    archives = (
        EOFError,
        KeyError,
        lzma.LZMAError,
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
    )  # zip:// and tar://
    return (OSError, ValueError, ImportError, RuntimeError, *archives, *own)


def reason(error: Exception) -> str:
    """Why a place could not be read, in one line."""
    return one_line(getattr(error, "strerror", None) or error)


def filesystem(place: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, made in this process, and the path in it.

    Raises:
        UserError: it needs a package that is not installed.
        failures(): there is no such file system.
    """
    import fsspec

    try:
        return fsspec.url_to_fs(place)  # type: ignore[no-any-return]
    except TypeError as error:  # it lacks an argument that no URL has
        raise ValueError(reason(error)) from None
    except ImportError as error:
        extra = _EXTRAS.get(protocol := place.partition("://")[0])
        advice = f"pip install 'excb[{extra}]'" if extra else reason(error)
        raise UserError(f"{protocol}:// needs a package that is not installed: {advice}") from None


def open_sequential(place: str) -> AbstractContextManager[IO[bytes]]:
    """Open a file to read it as a whole."""
    if not is_remote(place):
        return open_file(place)
    system, path = filesystem(place)
    return system.open(path, "rb", block_size=READ_AHEAD)  # type: ignore[no-any-return]


def stamps(places: list[str]) -> list[str]:
    """One text per file that changes with it: size, times, hashes. Raises UserError if a file cannot be found."""
    if any(map(is_remote, places)):
        with ThreadPoolExecutor(ASK_TOGETHER) as pool:
            return list(pool.map(stamp, places))
    return [stamp(place) for place in places]


def stamp(place: str) -> str:
    """The stamp of one file: see `stamps`."""
    try:
        if not is_remote(place):
            return local_stamp(os.stat(place))  # noqa: PTH116
        system, path = filesystem(place)
        status = system.info(path)
        return " ".join(f"{key}={status[key]}" for key in _CHANGES if status.get(key) is not None)
    except failures() as error:
        raise UserError(f"cannot find {place} ({reason(error)}): check the name, and your access to it") from None


def local_stamp(status: os.stat_result) -> str:
    """The stamp of a file of this machine."""
    return f"{status.st_size} {status.st_mtime_ns}"


class ChangedError(OSError):
    """A file has changed."""


class _Descriptor:
    """An open local file, closed with its last reference."""

    def __init__(self, place: str, expected: str) -> None:
        self.number = -1
        self.number = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        if local_stamp(os.fstat(self.number)) != expected:
            raise ChangedError(f"{place} has changed since this run began")

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class RangeReader:
    """Reads ranges of files. Each process opens its own, and keeps at most `MOST_OPEN` of them open.

    It can be pickled, without its open files. A local file that has changed since its stamp was taken is detected when
    it is opened.
    """

    def __init__(self) -> None:
        self._process = -1

    def __getstate__(self) -> dict[str, Any]:
        return {"_process": -1}

    def read(self, place: str, expected: str, offset: int, size: int) -> bytes:
        """Read `size` bytes from `offset` on of the file whose stamp is `expected`.

        Raises:
            failures(): it cannot be read, has changed, or is too short.
        """
        if self._process != os.getpid():  # a new process must share neither files nor connections with its parent
            self._descriptor = lru_cache(MOST_OPEN)(_Descriptor)
            self._system = lru_cache(MOST_OPEN)(filesystem)
            self._process = os.getpid()
        content = self._remote(place, offset, size) if is_remote(place) else self._local(place, expected, offset, size)
        if len(content) != size:  # it was cut, or a server sends whole files instead of ranges
            raise ChangedError(f"{place} gave {plural(len(content), 'byte')} for {size:,} from byte {offset:,}")
        return content

    def _local(self, place: str, expected: str, offset: int, size: int) -> bytes:
        descriptor = self._descriptor(place, expected)
        content = os.pread(descriptor.number, size, offset)
        while len(content) < size and (more := os.pread(descriptor.number, size - len(content), offset + len(content))):
            content += more
        return content

    def _remote(self, place: str, offset: int, size: int) -> bytes:
        system, path = self._system(place)
        for pause in (*PAUSES, None):
            try:
                return bytes(system.cat_file(path, start=offset, end=offset + size))
            except FileNotFoundError:
                raise
            except failures():
                if pause is None:
                    raise
                time.sleep(pause)
        raise AssertionError("unreachable")
