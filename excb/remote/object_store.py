"""Whole files in a folder at a URL, over fsspec: a name there is complete or absent, also after failures."""

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from excb.console import plural
from excb.errors import UserError
from excb.files.atomic import new_file
from excb.remote import byte_ranges

T = TypeVar("T")
PAUSES = (1.0, 4.0, 16.0)  # seconds before what failed is tried again


class StoreError(Exception):
    """An operation of a store failed after several tries."""


class ObjectStore:
    """A folder at a URL, which need not exist yet.

    A file is written under another name, and renamed once it has its full size, because file servers and mounted disks
    keep the beginning of a file if its writer dies. That name is the writer's own, since another machine may write the
    same file. All methods raise StoreError where the store fails.

    Raises:
        UserError: fsspec has no such protocol, or it needs a package that is missing.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if set(self.url) & set("*?[]"):
            raise UserError(f"{url} is a pattern: name one folder")
        try:
            self._system, self._root = byte_ranges.filesystem(self.url)
            self._own = uuid.uuid4().hex
        except byte_ranges.failures() as error:
            raise UserError(f"cannot use {url} ({byte_ranges.reason(error)}): check the name") from None

    def put(self, file: Path, name: str) -> None:
        """Write a local file that does not change meanwhile. If that fails, an older file is untouched."""
        self._place(name, file.stat().st_size, lambda path: self._system.put_file(str(file), path))

    def write(self, content: bytes, name: str) -> None:
        """Write bytes as `put` writes a file."""
        self._place(name, len(content), lambda path: self._system.pipe_file(path, content))

    def _place(self, name: str, size: int, send: Callable[[str], object]) -> None:
        folder, _, base = self._path(name).rpartition("/")
        partial = f"{folder}/.{base}.{self._own}.tmp"

        def place() -> None:
            if not getattr(self._system, "async_impl", False):  # object stores, which are async, have no folders
                self._system.makedirs(folder, exist_ok=True)
            send(partial)
            self._system.invalidate_cache()
            arrived = self._system.info(partial)["size"]
            if arrived != size:
                raise OSError(f"{arrived:,} of {plural(size, 'byte')} arrived")
            self._system.mv(partial, f"{folder}/{base}")

        try:
            self._tried(f"cannot write {self.url}/{name}", place)
        except FileNotFoundError as error:  # no such bucket
            raise StoreError(f"cannot write {self.url}/{name} ({byte_ranges.reason(error)})") from None

    def read(self, name: str) -> bytes | None:
        """A small file's bytes, or None if there is no file."""
        try:
            return self._tried(f"cannot read {self.url}/{name}", lambda: bytes(self._system.cat_file(self._path(name))))
        except FileNotFoundError:
            return None

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file to this machine, atomically. Raises UserError if `target` cannot be written."""

        def fetch() -> None:
            size = self._system.info(self._path(name))["size"]
            self._system.get_file(self._path(name), str(partial))
            if partial.stat().st_size != size:
                raise OSError(f"{partial.stat().st_size:,} of {plural(size, 'byte')} arrived")

        with new_file(target) as partial:
            try:
                self._tried(f"cannot read {self.url}/{name}", fetch)
            except FileNotFoundError:
                raise StoreError(f"cannot read {self.url}/{name} (it is gone)") from None

    def sizes(self, folder: str = "") -> dict[str, int]:
        """The visible files directly in a sub-folder, by name, with their sizes in bytes."""
        return {name: size for name, size in self._files(folder).items() if not name.startswith(".")}

    def sweep(self, folder: str = "") -> None:
        """Remove what writers that died have left directly in a sub-folder; of one that lives, what it is writing."""
        for name in self._files(folder):
            if name.startswith(".") and name.endswith(".tmp"):
                self.remove(f"{folder}/{name}".lstrip("/"))

    def _files(self, folder: str) -> dict[str, int]:
        """All files directly in a sub-folder, with their sizes in bytes."""

        def ask() -> list[dict[str, object]]:
            self._system.invalidate_cache()
            entries: list[dict[str, object]] = self._system.ls(self._path(folder), detail=True)
            return entries

        try:
            entries = self._tried(f"cannot list {self.url}/{folder}", ask)
        except FileNotFoundError:
            return {}
        files = {str(entry["name"]).rpartition("/")[2]: entry for entry in entries if entry["type"] == "file"}
        return {name: int(str(entry["size"])) for name, entry in files.items() if name}

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with suppress(FileNotFoundError):
            self._tried(f"cannot remove {self.url}/{name}", lambda: self._system.rm_file(self._path(name)))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}".rstrip("/")

    def _tried(self, what: str, work: Callable[[], T]) -> T:
        """Do something, and retry after pauses unless FileNotFoundError says that a file is missing."""
        for pause in (*PAUSES, None):
            try:
                return work()
            except FileNotFoundError:
                raise
            except byte_ranges.failures() as error:
                if pause is None or isinstance(error, PermissionError):
                    raise StoreError(f"{what} ({byte_ranges.reason(error)})") from None
            time.sleep(pause)
        raise AssertionError("unreachable")
