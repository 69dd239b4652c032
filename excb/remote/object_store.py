"""Whole files in a folder at a URL, over fsspec: a name there is whole or absent, whatever fails on the way."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from excb.errors import UserError
from excb.files.atomic import new_file
from excb.remote import byte_ranges

T = TypeVar("T")
PAUSES = (1.0, 4.0, 16.0)  # seconds before what failed is tried again


class StoreError(Exception):
    """What a store could not do, after several tries; the message says what and why."""


class Store:
    """A folder at a URL.

    A file is written under another name, and gets its own once it is there in full size: stores of objects put whole
    objects, but file servers, mounted disks and the like leave the beginning of a file where a writer dies.

    Args:
        url: of the folder, which need not exist.

    Raises:
        UserError: fsspec has no such protocol, or it needs a package that is missing.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if set(self.url) & set("*?[]"):
            raise UserError(f"{url} is a pattern: name one folder")
        try:
            self._system, self._root = byte_ranges.filesystem(self.url)
        except byte_ranges.failures() as error:
            raise UserError(f"cannot use {url} ({byte_ranges.reason(error)}): check the name") from None

    def put(self, file: Path, name: str) -> None:
        """Write a local file that nobody changes any more.

        Raises:
            StoreError: it cannot be written; what was there under that name is untouched.
        """
        self._place(name, file.stat().st_size, lambda path: self._system.put_file(str(file), path))

    def write(self, content: bytes, name: str) -> None:
        """Write some bytes.

        Raises:
            StoreError: see `put`.
        """
        self._place(name, len(content), lambda path: self._system.pipe_file(path, content))

    def _place(self, name: str, size: int, send: Callable[[str], object]) -> None:
        folder, _, base = self._path(name).rpartition("/")
        made = f"{folder}/.{base}.tmp"

        def place() -> None:
            if not getattr(self._system, "async_impl", False):  # stores of objects, all of them async, have no folders
                self._system.makedirs(folder, exist_ok=True)
            send(made)
            self._system.invalidate_cache()
            arrived = self._system.info(made)["size"]
            if arrived != size:
                raise OSError(f"{arrived:,} of {size:,} bytes arrived")
            self._system.mv(made, f"{folder}/{base}")

        try:
            self._tried(f"cannot write {self.url}/{name}", place)
        except FileNotFoundError as error:  # no such bucket
            raise StoreError(f"cannot write {self.url}/{name} ({byte_ranges.reason(error)})") from None

    def read(self, name: str) -> bytes | None:
        """A small file's bytes, or None where there is none.

        Raises:
            StoreError: it cannot be read.
        """
        try:
            return self._tried(f"cannot read {self.url}/{name}", lambda: bytes(self._system.cat_file(self._path(name))))
        except FileNotFoundError:
            return None

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file to this machine; `target` is whole or as it was.

        Raises:
            StoreError: it cannot be read.
            UserError: `target` cannot be written.
        """

        def fetch() -> None:
            size = self._system.info(self._path(name))["size"]
            self._system.get_file(self._path(name), str(made))
            if made.stat().st_size != size:
                raise OSError(f"{made.stat().st_size:,} of {size:,} bytes arrived")

        with new_file(target) as made:
            try:
                self._tried(f"cannot read {self.url}/{name}", fetch)
            except FileNotFoundError:
                raise StoreError(f"cannot read {self.url}/{name} (it is gone)") from None

    def sizes(self, folder: str = "") -> dict[str, int]:
        """The files right in a folder below, by name, with their sizes in bytes; hidden ones are left out.

        Raises:
            StoreError: it cannot be listed.
        """

        def ask() -> list[dict[str, object]]:
            self._system.invalidate_cache()
            found: list[dict[str, object]] = self._system.ls(self._path(folder), detail=True)
            return found

        try:
            entries = self._tried(f"cannot list {self.url}/{folder}", ask)
        except FileNotFoundError:
            return {}
        files = {str(entry["name"]).rpartition("/")[2]: entry for entry in entries if entry["type"] == "file"}
        return {name: int(str(entry["size"])) for name, entry in files.items() if name and not name.startswith(".")}

    def remove(self, name: str) -> None:
        """Remove a file, if it is there.

        Raises:
            StoreError: it cannot be removed.
        """
        try:
            self._tried(f"cannot remove {self.url}/{name}", lambda: self._system.rm_file(self._path(name)))
        except FileNotFoundError:
            return

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}".rstrip("/")

    def _tried(self, what: str, work: Callable[[], T]) -> T:
        """Do something, again after pauses where it fails.

        Raises:
            FileNotFoundError: a file is not there, which more tries do not change.
            StoreError: it fails for good.
        """
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
