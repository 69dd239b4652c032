"""Many processes that write one small file at once, some of them killed: readers see whole ones, nothing is lost."""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from excb.files.atomic import locked, write_text
from excb.hub.catalogue import Checkpoint, add, checkpoints
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.remote.home import record_hash, recorded
from tests.forked import server

WRITERS, ROUNDS = 4, 40
SIZE = 20_000  # characters: more than one write of the system


def started(target: Callable[..., None], *arguments: object) -> Sequence[BaseProcess]:
    """Writers, each with its number as the last argument."""
    writers = [server().Process(target=target, args=(*arguments, number)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    return writers


def ended(writers: Sequence[BaseProcess]) -> list[int | None]:
    for writer in writers:
        writer.join(60)
    return [writer.exitcode for writer in writers]


def write(file: Path, number: int) -> None:
    for _ in range(ROUNDS):
        write_text(json.dumps({"writer": number, "text": str(number) * SIZE}), file)


@pytest.mark.parametrize("killed", [False, True])
def test_a_small_file_is_always_one_writers(tmp_path: Path, killed: bool) -> None:
    file, chance = tmp_path / "report.json", random.Random(3)
    write_text(json.dumps({"writer": 0, "text": "0" * SIZE}), file)
    writers = started(write, file)
    while any(writer.is_alive() for writer in writers):
        contents = json.loads(file.read_text(encoding="utf-8"))
        assert contents["text"] == str(contents["writer"]) * SIZE
        if killed and chance.random() < 0.05 and writers[-1].is_alive() and contents["writer"] == WRITERS - 1:
            writers[-1].kill()
    codes = ended(writers)
    assert codes[:-1] == [0] * (WRITERS - 1)
    assert codes[-1] in ((0, -signal.SIGKILL) if killed else (0,))
    write_text("", file)  # removes what a killed writer was writing
    assert list(tmp_path.iterdir()) == [file]


def row(name: str) -> Checkpoint:
    return Checkpoint(
        name=name,
        method="ExCB",
        architecture=Architecture("resnet50"),
        preprocessing=Preprocessing(),
        source="imported",
    )


def note(home: Path, number: int) -> None:
    """A row and a hash in each round."""
    os.environ["EXCB_HOME"] = str(home)
    for turn in range(8):
        add(row(f"net-{number}-{turn}"), home / "catalogue.toml")
        record_hash(f"https://example.com/{number}/{turn}", f"{turn}" * 64, turn)


def test_rows_and_hashes_of_all_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCB_HOME", str(tmp_path))
    assert ended(started(note, tmp_path)) == [0] * WRITERS
    pairs = [(number, turn) for number in range(WRITERS) for turn in range(8)]
    assert {f"net-{number}-{turn}" for number, turn in pairs} <= {one.name for one in checkpoints()}
    for number, turn in pairs:
        assert recorded(f"https://example.com/{number}/{turn}") == f"{turn}" * 64


def hold(file: Path, _number: int) -> None:
    with locked(file):
        file.touch()
        time.sleep(600)


def test_a_writer_that_is_killed_with_the_lock_holds_nobody_up(tmp_path: Path) -> None:
    file = tmp_path / "catalogue.toml"
    holder = server().Process(target=hold, args=(file, 0))
    holder.start()
    while not file.exists():
        assert holder.exitcode is None
        os.sched_yield()
    holder.kill()
    add(row("net"), file)
    holder.join()
    assert "[net]" in file.read_text(encoding="utf-8")


def test_links_planted_at_names_of_old_are_not_followed(tmp_path: Path) -> None:
    """Names that could be guessed: with the target's own name, or with a process's number."""
    victim, file = tmp_path / "victim", tmp_path / "report.json"
    victim.write_text("precious", encoding="utf-8")
    guesses = [".report.json.tmp", "report.json.tmp", "report.json.part", f".report.json.{os.getpid()}.tmp"]
    for name in guesses:
        (tmp_path / name).symlink_to(victim)
    write_text("new", file)
    assert (victim.read_text(encoding="utf-8"), file.read_text(encoding="utf-8")) == ("precious", "new")
    assert sorted(place.name for place in tmp_path.iterdir()) == sorted([*guesses, "victim", "report.json"])
