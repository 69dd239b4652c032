"""Files at URLs: whole under their names or absent, whatever fails: on a disk, in memory, in a store with faults."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from excb.errors import UserError
from excb.remote import byte_ranges, object_store
from excb.remote.object_store import ObjectStore, StoreError
from tests.faulty_store import FaultyStore


@pytest.fixture(autouse=True)
def sound(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(object_store, "PAUSES", (0.0, 0.0))
    FaultyStore.reset()
    yield
    FaultyStore.reset()
    fsspec.filesystem("memory").store.clear()


@pytest.fixture(params=["memory://bucket/a/run", "faulty://bucket/run", "file", "local"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.param if "://" in request.param else f"{request.param}://{tmp_path}/run"


def test_files_go_there_and_back(url: str, tmp_path: Path) -> None:
    store, file = ObjectStore(f"{url}/"), tmp_path / "source"
    file.write_bytes(b"x" * 100_000)
    store.put(file, "checkpoints/one")
    store.write(b"old", "notes")
    store.write(b"new notes", "notes")
    other = ObjectStore(url)
    assert other.read("notes") == b"new notes"
    assert other.sizes() == {"notes": 9}
    assert other.sizes("checkpoints") == {"one": 100_000}
    other.fetch("checkpoints/one", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == file.read_bytes()
    other.remove("checkpoints/one")
    other.remove("checkpoints/one")
    assert store.sizes("checkpoints") == {}


def test_what_is_not_there(url: str, tmp_path: Path) -> None:
    store = ObjectStore(url)
    assert store.read("notes") is None
    assert store.sizes() == {}
    with pytest.raises(StoreError, match="gone"):
        store.fetch("notes", tmp_path / "target")
    assert list(tmp_path.glob("**/*target*")) == []


def test_a_few_failures_are_borne() -> None:
    store = ObjectStore("faulty://bucket/run")
    FaultyStore.fails.update({"put": 1, "mv": 1, "get": 2, "ls": 2})
    store.write(b"notes", "notes")
    assert store.read("notes") == b"notes"
    assert store.sizes() == {"notes": 5}


@pytest.mark.parametrize("fault", [{"put": 3}, {"mv": 3}, {"cut": 3}])
def test_a_name_has_the_old_file_where_a_new_one_fails(fault: dict[str, int]) -> None:
    store = ObjectStore("faulty://bucket/run")
    store.write(b"old", "notes")
    FaultyStore.cut = fault.pop("cut", 0)
    FaultyStore.fails.update(fault)
    with pytest.raises(StoreError, match=r"cannot write faulty://bucket/run/notes \((the store is down|3 of 7 bytes)"):
        store.write(b"new one", "notes")
    assert store.read("notes") == b"old"
    assert store.sizes() == {"notes": 3}  # what is left of the other is hidden
    store.write(b"new one", "notes")
    assert store.read("notes") == b"new one"
    assert FaultyStore.names() == {"bucket/run/notes"}


def test_two_machines_that_write_one_file_at_once_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second writes all of its file between the first one's bytes and their name."""
    first, second = ObjectStore("faulty://bucket/run"), ObjectStore("faulty://bucket/run")
    real = FaultyStore.mv

    def overtaken(system: FaultyStore, *places: str) -> None:
        monkeypatch.setattr(FaultyStore, "mv", real)
        second.write(b"second", "notes")
        real(system, *places)

    monkeypatch.setattr(FaultyStore, "mv", overtaken)
    first.write(b"the first", "notes")
    assert first.read("notes") == b"the first"
    assert FaultyStore.names() == {"bucket/run/notes"}


def test_what_a_dead_writer_left_is_swept() -> None:
    store = ObjectStore("faulty://bucket/run")
    FaultyStore.fails["mv"] = 3
    with pytest.raises(StoreError):
        ObjectStore("faulty://bucket/run").write(b"gigabytes", "checkpoints/step-1.pt")
    store.write(b"kept", "checkpoints/.kept-at")
    assert len(FaultyStore.names()) == 2
    store.sweep("checkpoints")
    assert FaultyStore.names() == {"bucket/run/checkpoints/.kept-at"}


def test_a_file_that_arrives_in_part_is_sent_again(tmp_path: Path) -> None:
    FaultyStore.cut = 2
    (tmp_path / "source").write_bytes(bytes(range(256)))
    ObjectStore("faulty://bucket/run").put(tmp_path / "source", "one")
    assert ObjectStore("faulty://bucket/run").read("one") == bytes(range(256))


def test_what_is_not_allowed_is_not_tried_again() -> None:
    FaultyStore.fails["put"], FaultyStore.error = 9, PermissionError(13, "Access Denied")
    with pytest.raises(StoreError, match="Access Denied"):
        ObjectStore("faulty://bucket/run").write(b"notes", "notes")
    assert FaultyStore.fails["put"] == 8


def test_a_file_here_stays_where_the_one_there_fails(tmp_path: Path) -> None:
    store = ObjectStore("faulty://bucket/run")
    store.write(b"notes", "notes")
    (tmp_path / "target").write_bytes(b"mine")
    FaultyStore.fails["get"] = 3
    with pytest.raises(StoreError, match="cannot read"):
        store.fetch("notes", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"mine"
    assert [file.name for file in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize(
    ("url", "words"),
    [("memory://bucket/run-*", "is a pattern"), ("nosuch://bucket/run", "cannot use nosuch://bucket/run")],
)
def test_places_that_are_none(url: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        ObjectStore(url)


@pytest.mark.parametrize(("url", "extra"), [("s3://bucket/run", "s3"), ("gs://bucket/run", "gs")])
def test_a_missing_package_is_named_by_its_extra(url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any) -> None:
        raise ImportError("Install it")

    monkeypatch.setattr(fsspec, "url_to_fs", absent)
    with pytest.raises(UserError, match=rf"needs a package that is not installed: pip install 'excb\[{extra}\]'"):
        ObjectStore(url)
    with pytest.raises(UserError, match=rf"pip install 'excb\[{extra}\]'"):
        byte_ranges.stamp(f"{url}/one.tar")
    assert "s3fs" not in sys.modules
