"""Tests of locks: whoever holds one is named, with process, machine and file, and no wait is without an end."""

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from excb.errors import UserError
from excb.files import atomic, locks


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file whose lock this process holds, as another one would: the system tells open files apart."""
    monkeypatch.setattr(locks, "ASK", 0.001)
    file = tmp_path / "hashes.json"
    lock = locks.acquire(atomic.lock_of(file), "changes it")
    yield file
    lock.release()


def test_the_holder_is_named(held: Path) -> None:
    told = locks.holder(atomic.lock_of(held))
    assert re.fullmatch(rf"process {os.getpid()} \(.+\) on {re.escape(platform.node())}", told), told


def test_a_file_that_stays_locked_is_one_line(held: Path) -> None:
    lock = re.escape(str(atomic.lock_of(held)))
    told = rf"process {os.getpid()} .* changes hashes\.json, holds {lock} and has not advanced for .* s: wait for it or"
    with pytest.raises(UserError, match=told), atomic.locked(held, patience=0.005):
        raise AssertionError("it is locked")


def test_a_holder_that_advances_is_waited_for(held: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, notes, looks = atomic.lock_of(held), list[str](), iter(range(6))

    def advance() -> int:
        return next(looks, 5)

    with pytest.raises(UserError, match=r"works, holds .*, or name another folder, then start again"):
        locks.acquire(lock, "works", advance=advance, patience=0.005, note=notes.append, advice="name another folder")
    assert next(looks, None) is None  # all of its advances were seen before it was given up
    assert len(notes) == 1
    assert notes[0].endswith("works: waiting for it")


def test_beats_are_seen(held: Path, tmp_path: Path) -> None:
    lock = atomic.lock_of(held)
    os.utime(lock, ns=(1, 1))
    before = locks.beats(lock)
    locks.beat(lock)
    assert locks.beats(lock) > before == 1
    locks.beat(tmp_path / "absent")
    assert locks.beats(tmp_path / "absent") == 0


def test_a_holder_that_nobody_lists(held: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locks, "_TABLE", tmp_path / "absent")
    assert locks.holder(atomic.lock_of(held)) == "another process, perhaps on another machine,"
