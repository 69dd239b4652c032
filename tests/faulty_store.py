"""A store for tests, faulty://, whose requests fail, are cut or leave things out, as often as a test says."""

from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class FaultyStore(MemoryFileSystem):
    """fsspec's memory, with faults."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fails: ClassVar[dict[str, int]] = {}  # how often a request of a kind still fails
    error: ClassVar[Exception] = OSError("the store is down")
    cut: ClassVar[int] = 0  # files that still arrive with their first half only, without a word
    hidden: ClassVar[set[str]] = set()  # names that listings leave out
    asked: ClassVar[list[tuple[str, str]]] = []  # every request

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.replace("faulty://", "memory://"))
        return stripped

    @classmethod
    def reset(cls) -> None:
        """Empty and sound."""
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.fails.clear()
        cls.hidden.clear()
        cls.asked.clear()
        cls.cut, cls.error = 0, OSError("the store is down")

    @classmethod
    def names(cls) -> set[str]:
        """All that is stored."""
        return {name.lstrip("/") for name in cls.store}

    def _request(self, kind: str, path: str) -> None:
        type(self).asked.append((kind, self._strip_protocol(path)))
        if type(self).fails.get(kind, 0):
            type(self).fails[kind] -= 1
            raise type(self).error

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        if type(self).cut:
            type(self).cut -= 1
            value = value[: len(value) // 2]
        super().pipe_file(path, value[:1])  # as others see it while it is being written
        self._request("put", path)
        super().pipe_file(path, value)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        self._request("mv", path2)
        super().mv(path1, path2, **options)

    def cat_file(self, path: str, *ends: Any, **options: Any) -> bytes:
        self._request("get", path)
        content: bytes = super().cat_file(path, *ends, **options)
        return content

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        self._request("get", rpath)
        super().get_file(rpath, lpath, **options)

    def rm_file(self, path: str) -> None:
        self._request("rm", path)
        super().rm_file(path)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._request("ls", path)
        found = super().ls(path, detail=True, **options)
        kept = [entry for entry in found if entry["name"].rpartition("/")[2] not in type(self).hidden]
        return kept if detail else [entry["name"] for entry in kept]


fsspec.register_implementation("faulty", FaultyStore, clobber=True)
