"""The doctor's look at the run folder: no permission, a run at work, a wrong clock, a full disk."""

import fcntl
import os
import shutil
import time
from pathlib import Path

import pytest

from excb.errors import UserError
from excb.pretrain.doctor.run_folder import check_folder, check_space, check_store
from excb.remote import object_store
from tests.faulty_store import FaultyStore

GIB = 2**30


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    assert [finding.verdict for finding in check_folder(tmp_path / "runs" / "new")] == ["ok", "ok"]
    assert list(tmp_path.iterdir()) == []


def test_a_run_to_go_on_with(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").touch()
    assert "which the same command resumes" in check_folder(tmp_path)[0].found


def test_what_the_run_would_refuse(tmp_path: Path) -> None:
    def refuse() -> None:
        raise UserError("it holds: another run: choose another --out")

    finding, _clock = check_folder(tmp_path, refuse)
    assert (finding.verdict, finding.found, finding.fix) == ("error", "it holds: another run", "choose another --out")


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "fsync", refuse)  # permissions would not stop root, who may run the tests
    (finding,) = check_folder(tmp_path)
    assert finding.verdict == "error"
    assert "Read-only file system" in finding.found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("run", ["taken", "taken/run"])
def test_a_file_in_the_way(tmp_path: Path, run: str) -> None:
    (tmp_path / "taken").touch()
    (finding,) = check_folder(tmp_path / run)
    assert finding.verdict == "error"
    assert finding.found == f"{tmp_path / 'taken'} is a file"


def test_another_process_trains_there(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert check_folder(tmp_path)[0].verdict == "error"
    assert check_folder(tmp_path)[0].verdict == "ok"


def test_a_lock_that_another_user_holds(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()  # cannot be opened, whoever runs the tests
    (finding,) = check_folder(tmp_path)
    assert (finding.verdict, finding.fix) == ("error", "choose another --out")


@pytest.mark.parametrize(("off", "words"), [(60.0, "60 s behind"), (-60.0, "60 s ahead of")])
def test_a_clock_that_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: float, words: str) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + off)
    finding = check_folder(tmp_path)[1]
    assert finding.verdict == "warning"
    assert words in finding.found


@pytest.mark.parametrize(("free", "verdict"), [(4.9, "error"), (5.1, "warning"), (9.9, "warning"), (10.1, "ok")])
def test_room_for_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, verdict: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(GIB, GIB, int(free * GIB)))
    assert check_space(tmp_path / "new", GIB, keep=3).verdict == verdict


def test_checkpoints_that_are_there_need_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(GIB, GIB, 2 * GIB))
    (tmp_path / "checkpoints").mkdir()
    with (tmp_path / "checkpoints" / "step-7.pt").open("wb") as stream:
        stream.truncate(4 * GIB)  # a file of holes
    assert check_space(tmp_path, GIB, keep=3).verdict == "ok"


def test_a_store_that_can_be_used_is_left_as_it_was() -> None:
    FaultyStore.reset()
    assert check_store("faulty://bucket/run").verdict == "ok"
    assert FaultyStore.names() == set()


@pytest.mark.parametrize("kind", ["put", "get", "rm"])
def test_a_store_that_cannot_be_used(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "PAUSES", ())
    FaultyStore.reset()
    FaultyStore.fails[kind] = 9
    finding = check_store("faulty://bucket/run")
    FaultyStore.reset()
    assert (finding.verdict, "the store is down" in finding.found) == ("error", True)
