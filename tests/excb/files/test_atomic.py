"""Tests of files and folders that appear whole or not at all: at every failure the old or the new, and nothing else."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from excb.errors import UserError
from excb.files import atomic
from excb.files.atomic import check_writable_folder, new_file, new_folder, write_text
from tests.failing_disk import failing_at, names
from tests.forked import server

Tree = dict[str, bytes] | None


def make_file(target: Path, text: bytes) -> None:
    with new_file(target) as made:
        made.write_bytes(text)


def make_folder(target: Path, text: bytes) -> None:
    with new_folder(target) as made:
        (made / "a").write_bytes(text)
        (made / "deeper").mkdir()
        (made / "deeper" / "b").write_bytes(text * 2)


def test_a_place_is_judged_before_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_writable_folder(tmp_path / "new" / "folder")
    assert names(tmp_path) == ["file"]
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/new")):  # where not even root can write
        with pytest.raises(UserError, match="cannot write in"):
            check_writable_folder(place)


def tree(path: Path) -> Tree:
    """All that lies at a path."""
    if path.is_file():
        return {"": path.read_bytes()}
    if not path.exists():
        return None
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


both = pytest.mark.parametrize("make", [make_file, make_folder])
Make = Callable[[Path, bytes], None]


@both
def test_it_is_made_and_replaced_in_a_folder_that_is_made(tmp_path: Path, make: Make) -> None:
    target = tmp_path / "deep" / "target"
    make(target, b"old")
    old = tree(target)
    assert old
    assert b"old" in old.values()
    make(target, b"new")
    assert tree(target) == {name: text.replace(b"old", b"new") for name, text in old.items()}
    assert names(tmp_path / "deep") == ["target"]


def test_new_folder_replaces_all_of_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "other").mkdir(parents=True)
    (target / "other" / "file").write_bytes(b"old")
    make_folder(target, b"new")
    assert tree(target) == {"a": b"new", "deeper/b": b"newnew"}


@both
def test_new_things_have_the_modes_that_others_have(tmp_path: Path, make: Make) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    make(tmp_path / "target", b"new")
    ordinary = "file" if make is make_file else "folder"
    assert (tmp_path / "target").stat().st_mode == (tmp_path / ordinary).stat().st_mode


def start_and_stop(target: Path, make: Make) -> None:
    with new_file(target) if make is make_file else new_folder(target) as made:
        (made if make is make_file else made / "a").write_bytes(b"half")
        raise KeyError("of the block")


@both
@pytest.mark.parametrize("before", [None, b"old"])
def test_error_in_the_block_leaves_what_was_there(tmp_path: Path, make: Make, before: bytes | None) -> None:
    target = tmp_path / "target"
    if before is not None:
        make(target, before)
    was = tree(target)
    with pytest.raises(KeyError, match="of the block"):
        start_and_stop(target, make)
    assert tree(target) == was
    assert names(tmp_path) == ([] if before is None else ["target"])


def every_step(tmp_path: Path, make: Make, before: bytes | None, *, cuts_power: bool) -> set[str]:
    """Let every step of a replacement fail in turn, and give the names of the steps."""
    seen: set[str] = set()
    make(tmp_path / "new", b"new")
    new = tree(tmp_path / "new")
    for step in range(1, 100):
        folder = tmp_path / str(step)
        folder.mkdir()
        target = folder / "target"
        if before is not None:
            make(target, before)
        old = tree(target)
        with failing_at(step, cuts_power=cuts_power) as asked:
            make(target, b"new")
        if len(asked) < step:
            assert tree(target) == new
            return seen
        assert tree(target) in (old, new)
        if not cuts_power:
            assert names(folder) == (["target"] if target.exists() else [])
        seen |= set(asked)
    raise AssertionError("it never ends")


@both
@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("cuts_power", [False, True])
def test_at_every_failing_step_there_is_the_old_or_the_new(
    tmp_path: Path, make: Make, before: bytes | None, cuts_power: bool
) -> None:
    seen = every_step(tmp_path, make, before, cuts_power=cuts_power)
    assert {"fsync", "replace" if make is make_file else "rename"} <= seen
    assert ("_exchange" in seen) == (make is make_folder and before is not None)


def test_where_folders_cannot_be_swapped_every_failure_gives_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_exchange", lambda _first, _second: False)
    every_step(tmp_path, make_folder, b"old", cuts_power=False)


def test_folders_are_swapped_here_in_one_step(tmp_path: Path) -> None:
    make_folder(tmp_path / "a", b"first")
    make_folder(tmp_path / "b", b"second")
    before = tree(tmp_path / "a"), tree(tmp_path / "b")
    if not atomic._exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this system cannot swap two folders")
    assert (tree(tmp_path / "b"), tree(tmp_path / "a")) == before
    assert not atomic._exchange(tmp_path / "a", tmp_path / "nothing")


@both
def test_two_at_once_do_not_meet(tmp_path: Path, make: Make) -> None:
    new = new_file if make is make_file else new_folder
    target = tmp_path / "target"
    with new(target) as first, new(target) as second:
        for made, text in ((first, b"first"), (second, b"second")):
            (made if make is make_file else made / "a").write_bytes(text)
    assert set((tree(target) or {}).values()) == {b"first"}  # the last that was finished
    assert names(tmp_path) == ["target"]


def _write_often(target: Path, letter: str) -> None:
    for _ in range(200):
        write_text(letter * 100_000, target)


def test_two_processes_that_write_one_file_leave_a_whole_one(tmp_path: Path) -> None:
    """A reader in between sees one writer's text or the other's, never a mixture or a part."""
    target = tmp_path / "target"
    write_text("a" * 100_000, target)
    writers = [server().Process(target=_write_often, args=(target, letter)) for letter in "ab"]
    for writer in writers:
        writer.start()
    seen = set[str]()
    while any(writer.is_alive() for writer in writers):
        text = target.read_text()
        assert len(text) == 100_000
        seen |= set(text[:: 100_000 - 1])
        assert text == text[0] * 100_000
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen == {"a", "b"}
    assert names(tmp_path) == ["target"]


def test_a_link_in_place_of_the_new_file_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where somebody could guess its name."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr("excb.files.atomic.uuid.uuid4", lambda: SimpleNamespace(hex="01234567guessed"))
    (tmp_path / f".target.{atomic._MACHINE}guessed.tmp").symlink_to(victim)
    with pytest.raises(UserError, match="File exists"):
        write_text("new", tmp_path / "target")
    assert victim.read_bytes() == b"precious"


LEFT = f"{atomic._MACHINE}{'0123456789ab' * 2}"  # of a writer that was killed, and whose lock the system has released


def left_behind(folder: Path, *endings: str) -> None:
    """The hidden file of a killed writer of "target", and folders that belong to it."""
    (folder / f".target.{LEFT}.tmp").touch()
    for ending in endings:
        write_text("left", folder / f".target.{LEFT}{ending}" / "a")


@both
@pytest.mark.parametrize("endings", [(), (".new",), (".old",), (".new", ".old")])
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path, make: Make, endings: tuple[str, ...]) -> None:
    make(tmp_path / "target", b"old")
    left_behind(tmp_path, *endings)
    make(tmp_path / "target", b"new")
    assert names(tmp_path) == ["target"]


def test_a_folder_whose_writer_was_killed_between_two_steps_comes_back(tmp_path: Path) -> None:
    """It had moved the old one aside, and had not given its name to the new one."""
    left_behind(tmp_path, ".new", ".old")
    write_text("", tmp_path / "another")
    assert names(tmp_path) == ["another", "target"]
    assert tree(tmp_path / "target") == {"a": b"left"}


@both
def test_what_a_living_writer_writes_is_not_removed(tmp_path: Path, make: Make) -> None:
    new = new_file if make is make_file else new_folder
    with new(tmp_path / "target") as made:
        hidden = names(tmp_path)
        make_file(tmp_path / "target", b"another")
        assert names(tmp_path) == [*hidden, "target"]
        if make is make_folder:
            (tmp_path / "target").unlink()  # a folder replaces no file
        (made if make is make_file else made / "a").write_bytes(b"mine")
    assert names(tmp_path) == ["target"]
    assert set((tree(tmp_path / "target") or {}).values()) == {b"mine"}


def test_what_another_machine_left_stays(tmp_path: Path) -> None:
    """Some network disks show no machine the locks of others: its writer may be alive."""
    other = tmp_path / f".target.{'f' * 8}{LEFT[8:]}.tmp"
    other.touch()
    make_file(tmp_path / "target", b"new")
    assert names(tmp_path) == sorted([other.name, "target"])


def test_where_a_disk_has_no_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "lock_open_file", lambda _descriptor, wait: False)
    left_behind(tmp_path)
    make_file(tmp_path / "target", b"new")
    assert names(tmp_path) == [f".target.{LEFT}.tmp", "target"]


def test_a_file_that_is_removed_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter([True, True, False])

    def lock(_descriptor: int, *, wait: bool) -> bool:
        if next(turns):
            (only,) = tmp_path.iterdir()
            only.unlink()
        return wait

    monkeypatch.setattr(atomic, "lock_open_file", lock)
    make_file(tmp_path / "target", b"new")
    assert names(tmp_path) == ["target"]
    assert list(turns) == []


@pytest.mark.parametrize(
    "name", [".target.tmp", f"target.{LEFT}.tmp", f".target.{LEFT}.part", f".target.{LEFT[1:]}.tmp", ".target.lock"]
)
def test_other_hidden_files_stay(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    (tmp_path / f".target.{LEFT}.tmp").mkdir()  # a folder of such a name is none of ours
    make_file(tmp_path / "target", b"new")
    assert names(tmp_path) == sorted([name, f".target.{LEFT}.tmp", "target"])


def test_a_folder_of_many_files_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "_MANY", 1)
    for number in range(3):  # 2 names are many
        make_file(tmp_path / str(number), b"new")
    left_behind(tmp_path)
    make_file(tmp_path / "3", b"new")
    assert names(tmp_path) == [f".target.{LEFT}.tmp", "0", "1", "2", "3"]


def test_a_folder_that_may_not_be_listed_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("excb.files.atomic.os.scandir", lambda folder: (folder / "nothing").stat())
        make_file(tmp_path / "target", b"new")
    assert tree(tmp_path / "target") == {"": b"new"}


def test_names_of_new_things_are_never_the_same(tmp_path: Path) -> None:
    seen = set[Path]()
    for _ in range(100):
        with new_file(tmp_path / "target") as partial:
            seen.add(partial)
    assert len(seen) == 100


def _count(file: Path) -> None:
    for _ in range(30):
        with atomic.locked(file):
            write_text(f"{int(file.read_text()) + 1}", file)


def test_processes_that_change_a_locked_file_take_turns(tmp_path: Path) -> None:
    file = tmp_path / "count"
    file.write_text("0")
    writers = [server().Process(target=_count, args=(file,)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert file.read_text() == "90"


def test_an_error_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*target: .*; name another file$"):
        write_text("", tmp_path / "file" / "target", advice="name another file")


@both
def test_place_that_cannot_be_written(tmp_path: Path, make: Make) -> None:
    (tmp_path / "file").write_bytes(b"not a folder")
    with pytest.raises(UserError, match=r"cannot write .*target: "):
        make(tmp_path / "file" / "target", b"new")
    assert tree(tmp_path) == {"file": b"not a folder"}


def test_names_that_are_not_utf8_are_written_as_the_bytes_they_are(tmp_path: Path) -> None:
    write_text(os.fsdecode(b"caf\xe9 \xc3\xa9"), tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"caf\xe9 \xc3\xa9"
