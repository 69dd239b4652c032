"""Tests of the table of digests: unchanged files are read once, changed ones again, whatever fails."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from excb.images import digests
from excb.images.image_set import ImageSet
from excb.images.subset import Subset

KIND = "contents"


class Files:
    """Some files of four bytes, and the numbers of those that were read."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.paths = [folder / str(number) for number in range(count)]
        self.read = list[int]()
        for number, path in enumerate(self.paths):
            path.write_bytes(number.to_bytes(4, "big"))

    def _contents(self, number: int) -> bytes | None:
        self.read.append(number)
        return self.paths[number].read_bytes() if self.paths[number].exists() else None

    def digests(self) -> tuple[list[bytes | None], list[int]]:
        """The digests, and which files were read for them."""
        self.read.clear()
        return digests.digests_of(KIND, self.paths, self._contents), [*self.read]


@pytest.fixture
def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and a clock far ahead of all files."""
    monkeypatch.setenv("EXCB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "UNSETTLED", -3600.0)


@pytest.mark.usefixtures("settled")
def test_several_kinds_take_one_reading(tmp_path: Path) -> None:
    files, other = Files(tmp_path / "a"), "contents, backwards"

    def both(number: int) -> tuple[bytes | None, bytes | None]:
        content = files._contents(number)
        return content, None if content is None or number == 2 else content[::-1]

    digests.keep_digests((KIND, other), [*files.paths[:1], None, files.paths[2]], both)
    assert files.read == [0, 2]  # the second one is not a file
    contents = [number.to_bytes(4, "big") for number in range(3)]
    assert files.digests() == (contents, [1])
    files.read.clear()
    backwards = digests.digests_of(other, files.paths[:1], lambda _number: pytest.fail("it was read before"))
    assert backwards == [contents[0][::-1]]
    digests.keep_digests((KIND, other), files.paths, both)
    assert files.read == [1, 2]  # which lack the other kind


def test_of_files_that_changed_lately_nothing_is_kept_so_they_are_not_read_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "UNSETTLED", 3600.0)
    files = Files(tmp_path / "a")
    digests.keep_digests((KIND,), files.paths, lambda number: [files._contents(number)])
    assert files.read == []
    assert files.digests()[1] == [0, 1, 2]


@pytest.mark.usefixtures("settled")
def test_only_changed_files_are_read_again(tmp_path: Path) -> None:
    files = Files(tmp_path / "a")
    contents = [number.to_bytes(4, "big") for number in range(3)]
    assert files.digests() == (contents, [0, 1, 2])
    assert files.digests() == (contents, [])
    before = files.paths[1].stat()
    files.paths[1].write_bytes(b"abcd")  # of the same size, and with the time that it had before
    os.utime(files.paths[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert files.digests() == ([contents[0], b"abcd", contents[2]], [1])
    files.paths[2].unlink()
    assert files.digests() == ([contents[0], b"abcd", None], [2])
    files.paths[0].rename(tmp_path / "a" / "renamed")
    files.paths[0] = tmp_path / "a" / "renamed"
    assert files.digests()[0][0] == contents[0]


@pytest.mark.usefixtures("settled")
def test_a_file_that_changes_while_it_is_read_is_not_kept(tmp_path: Path) -> None:
    files = Files(tmp_path / "a", 1)

    def changing(number: int) -> bytes:
        old = files.paths[number].read_bytes()
        files.paths[number].write_bytes(b"longer than before")
        return old

    assert digests.digests_of(KIND, files.paths, changing) == [bytes(4)]
    assert files.digests() == ([b"longer than before"], [0])


def test_a_file_that_was_just_written_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCB_CACHE", str(tmp_path / "cache"))
    files = Files(tmp_path / "a", 1)
    assert files.digests()[1] == files.digests()[1] == [0]


@pytest.mark.usefixtures("settled")
def test_a_damaged_table_is_made_anew(tmp_path: Path) -> None:
    files = Files(tmp_path / "a")
    first = files.digests()
    table = digests.table_file()
    table.write_bytes(b"no table at all" * 1000)
    assert files.digests() == first
    assert files.digests() == (first[0], [])


@pytest.mark.usefixtures("settled")
def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path / "a")
    first = files.digests()
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("EXCB_CACHE", str(tmp_path / "file"))
    assert files.digests() == files.digests() == first


@pytest.mark.usefixtures("settled")
def test_a_full_disk_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, pages = Files(tmp_path / "a", 200), 4
    import sqlite3

    def full(file: Path, timeout: float) -> sqlite3.Connection:
        table = connect(file, timeout=timeout)
        table.execute(f"PRAGMA max_page_count = {pages}")
        return table

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", full)
    first = files.digests()
    assert files.digests() == first
    assert len(first[1]) == 200


@pytest.mark.usefixtures("settled")
def test_a_table_beyond_its_limit_is_emptied_once_and_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emptied file stays as large as it was; what is written then stays in it, all kinds of one call."""
    many, files = Files(tmp_path / "a", 3000), Files(tmp_path / "b", 20)
    many.digests()
    monkeypatch.setattr(digests, "MOST_BYTES", digests.table_file().stat().st_size // 2)

    def both(number: int) -> tuple[bytes | None, bytes | None]:
        content = files._contents(number)
        return content, content

    for turn in range(3):
        files.read.clear()
        digests.keep_digests((KIND, "other"), files.paths, both)
        assert files.read == ([] if turn else [*range(20)])
    assert many.digests()[1] == [*range(3000)]


@pytest.mark.usefixtures("settled")
def test_several_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    some = [Files(tmp_path / str(number), 20) for number in range(8)]
    with ThreadPoolExecutor(len(some)) as pool:
        first = list(pool.map(Files.digests, some))
    assert [files.digests() for files in some] == [(values, []) for values, _ in first]


def test_files_of_a_part_of_a_set_and_of_none(tmp_path: Path) -> None:
    import numpy as np

    images = ImageSet(tmp_path, ["a.jpg", "/b.jpg", "c.jpg"])
    assert digests.files_of(Subset(images, np.array([2, 1])), [0, 1]) == [str(tmp_path / "c.jpg"), "/b.jpg"]
    assert digests.files_of(object(), [0, 1]) == [None, None]
