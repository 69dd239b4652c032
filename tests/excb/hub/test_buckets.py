"""`excb.load` of checkpoints at URLs: runs, exported folders and files, as from a disk; fetched again once changed."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import excb
from excb.checkpoint import run_checkpoint
from excb.errors import UserError
from excb.remote import object_store
from tests.faulty_store import FaultyStore
from tests.run_files import contents, damage, tiny_recipe, write_run

URL = "faulty://bucket/run"


@pytest.fixture(autouse=True)
def sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(object_store, "PAUSES", (0.0,))
    monkeypatch.setenv("EXCB_CACHE", str(tmp_path / "cache"))
    FaultyStore.reset()
    yield
    FaultyStore.reset()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", 8, 20)


def upload(folder: Path, url: str = URL) -> None:
    """Upload the contents of a folder, and nothing else."""
    FaultyStore.store.clear()
    for file in folder.rglob("*"):
        if file.is_file():
            FaultyStore().pipe_file(f"{url}/{file.relative_to(folder).as_posix()}", file.read_bytes())
    FaultyStore.asked.clear()


def assert_loads(name: str, step: int, run: Path) -> None:
    loaded, expected = excb.load(name), excb.load(run / "checkpoints" / f"step-{step}.pt")
    assert loaded.entry.step == step
    wanted = expected.network.state_dict()
    assert all(torch.equal(value, wanted[key]) for key, value in loaded.network.state_dict().items())


def fetched() -> list[str]:
    return [path.rpartition("/")[2] for kind, path in FaultyStore.asked if kind == "get"]


def test_a_runs_newest_checkpoint_is_fetched_once(run: Path) -> None:
    upload(run)
    assert_loads(URL, 20, run)
    assert_loads(f"{URL}/", 20, run)
    assert fetched() == ["step-20.pt"]


def test_a_newer_one_takes_its_place_and_its_room(run: Path, tmp_path: Path) -> None:
    upload(run)
    excb.load(URL)
    write_run(run, 30)
    upload(run)
    assert_loads(URL, 30, run)
    assert [file.name for file in (tmp_path / "cache").rglob("*.pt")] == ["step-30.pt"]


def test_a_damaged_one_is_named_and_the_one_before_used(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(run / "checkpoints" / "step-20.pt")
    upload(run)
    assert_loads(URL, 8, run)
    assert f"{URL}/checkpoints/step-20.pt is damaged; trying the one before" in capsys.readouterr().err
    damage(run / "checkpoints" / "step-8.pt")
    upload(run)
    with pytest.raises(UserError, match=f"every checkpoint of {URL} is damaged"):
        excb.load(URL)


def test_one_file(run: Path) -> None:
    upload(run)
    assert_loads(f"{URL}/checkpoints/step-8.pt", 8, run)
    assert fetched() == ["step-8.pt"]


def test_a_file_that_changes_is_fetched_again(run: Path) -> None:
    upload(run)
    url, file = f"{URL}/checkpoints/step-8.pt", run / "checkpoints" / "step-8.pt"
    excb.load(url)
    run_checkpoint.write_run_checkpoint(contents(tiny_recipe(), step=8, seed=3), file)
    upload(run)
    assert_loads(url, 8, run)


def test_an_exported_folder(run: Path, tmp_path: Path) -> None:
    from excb.zoo.__main__ import main

    assert main(["export", str(run), "--out", str(tmp_path / "exported")]) == 0
    upload(tmp_path / "exported")
    shutil.rmtree(tmp_path / "exported")
    assert_loads(URL, 20, run)


@pytest.mark.parametrize("url", [URL, f"{URL}/other.pt", "faulty://nothing"])
def test_nothing_there(url: str) -> None:
    FaultyStore().pipe_file(f"{URL}/notes.txt", b"notes")
    with pytest.raises(UserError, match=f"no checkpoint at {url}: name a run"):
        excb.load(url)


def test_a_store_that_is_down(run: Path) -> None:
    upload(run)
    FaultyStore.fails["ls"] = 99
    with pytest.raises(UserError, match=r"cannot list .*the store is down.*check the name"):
        excb.load(URL)
