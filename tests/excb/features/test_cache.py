"""Tests of features on disk: whole or absent, damage found, unfinished work gone on with, nothing else touched."""

import json
import os
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from excb.errors import UserError
from excb.features import cache
from excb.features.cache import CHECKSUMS, SRGB, CachedFeatures, FeatureStore
from excb.features.listing import FOLDER, META, entries, remove, unfinished_files
from excb.files.atomic import new_file, new_folder
from excb.remote.home import cache_root
from excb.transfer.cli import main as evaluate

WIDTH = 3
SHARDS = [range(5), range(5, 10), range(10, 12)]
MADE_FROM = {"architecture": {"name": "resnet18"}, "kind": "pooled"}


def rows(shard: range) -> np.ndarray:
    return np.arange(shard.start * WIDTH, shard.stop * WIDTH, dtype=np.float32).reshape(-1, WIDTH)


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    """A complete set of twelve rows in three shards."""
    store = FeatureStore(tmp_path / FOLDER / "key", SHARDS, WIDTH)
    store.start([0, 1, 2])
    for number, shard in enumerate(SHARDS):
        store.write(number, rows(shard))
    store.finish(MADE_FROM)
    return store


def test_what_was_written_is_read(store: FeatureStore, warnings: list[str]) -> None:
    assert store.missing(warnings.append) == []
    assert warnings == []
    assert torch.equal(store.open().all(), torch.from_numpy(rows(range(12))))
    assert sorted(file.name for file in store.folder.iterdir()) == ["00000.npy", "00001.npy", "00002.npy", META, SRGB]
    assert np.array_equal(np.load(store.folder / "00001.npy"), rows(SHARDS[1]))  # plain NumPy reads it


@pytest.mark.parametrize("start", range(13))
def test_any_range_of_rows(store: FeatureStore, start: int) -> None:
    features = store.open()
    assert (len(features), features.width) == (12, WIDTH)
    for stop in range(start, 13):
        assert torch.equal(features.rows(start, stop), torch.from_numpy(rows(range(start, stop))))


def test_any_rows_in_any_order(store: FeatureStore) -> None:
    wanted = [11, 0, 4, 5, 5, 9, 10]
    whole = rows(range(12))
    assert torch.equal(store.open().take(torch.tensor(wanted)), torch.from_numpy(np.stack([whole[n] for n in wanted])))
    assert store.open().take(torch.tensor([], dtype=torch.int64)).shape == (0, WIDTH)
    assert torch.equal(torch.cat(list(store.open().parts())), torch.from_numpy(whole))


def test_rows_of_one_shard_are_not_copied() -> None:
    shard = rows(range(5))
    assert CachedFeatures([shard]).all().data_ptr() == shard.ctypes.data


def test_changing_rows_in_place_leaves_the_file_alone(store: FeatureStore, warnings: list[str]) -> None:
    store.open().rows(0, 5).zero_()
    assert store.missing(warnings.append) == []


def test_a_header_that_python_2_might_have_written_is_nothing_to_tell(store: FeatureStore, warnings: list[str]) -> None:
    file = store.folder / "00001.npy"
    file.write_bytes(file.read_bytes().replace(b", 'shape': (5, ", b", 'shape': (5L,"))
    with pytest.warns(UserWarning, match="Python 2"):
        assert np.load(file).size  # so this test can fail
    assert store.missing(warnings.append) == []


@pytest.mark.parametrize("harm", ["flipped bit", "cut short", "empty", "other shape", "other type"])
def test_damaged_shard_is_found(store: FeatureStore, warnings: list[str], harm: str) -> None:
    file = store.folder / "00001.npy"
    data = bytearray(file.read_bytes())
    if harm == "flipped bit":
        data[-7] ^= 1
        file.write_bytes(data)
    elif harm == "other shape":
        np.save(file, rows(range(4)))
    elif harm == "other type":
        np.save(file, rows(SHARDS[1]).astype(np.float64))
    else:
        file.write_bytes(data[:-1] if harm == "cut short" else b"")
    assert store.missing(warnings.append) == [1]
    assert warnings == [f"{file} is damaged: its features are computed again"]
    store.start([1])
    assert sorted(path.name for path in store.folder.iterdir()) == ["00000.npy", "00002.npy", CHECKSUMS, SRGB]
    store.write(1, rows(SHARDS[1]))
    store.finish(MADE_FROM)
    assert store.missing(warnings.append) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"crc32": [1, 2]}', '{"crc32": 3}', "null"])
def test_without_checksums_nothing_counts(store: FeatureStore, warnings: list[str], text: str) -> None:
    (store.folder / META).write_text(text)
    assert store.missing(warnings.append) == [0, 1, 2]
    assert warnings == [f"{store.folder / META} is damaged: these features are computed again"]


@pytest.fixture
def unfinished(tmp_path: Path) -> FeatureStore:
    """Two shards of three, and half of the third."""
    store = FeatureStore(tmp_path / FOLDER / "unfinished", SHARDS, WIDTH)
    store.start([0, 1, 2])
    for number in (0, 1):
        store.write(number, rows(SHARDS[number]))
    with mock.patch.object(cache, "KEEP_SECONDS", 0):
        store.keep(2, [torch.from_numpy(rows(range(10, 11)))])
    return FeatureStore(store.folder, SHARDS, WIDTH)  # as another process opens it


def test_unfinished_features_go_on_at_the_first_missing_row(unfinished: FeatureStore, warnings: list[str]) -> None:
    assert not unfinished.finished()
    assert unfinished.missing(warnings.append) == [2]
    unfinished.start([2])
    assert {n: kept.tolist() for n, kept in unfinished.kept([2], warnings.append).items()} == {
        2: rows(range(10, 11)).tolist()
    }
    (unfinished.folder / "00001.npy").rename(unfinished.folder / ".00001.npy.17.tmp")  # killed while it was written
    assert unfinished.missing(warnings.append) == [1, 2]
    assert warnings == []


def test_rows_are_kept_by_the_clock(unfinished: FeatureStore) -> None:
    before = unfinished.kept([2], pytest.fail)[2]
    with mock.patch.object(cache, "time", mock.Mock(monotonic=lambda: 1e9)) as clock:
        unfinished.keep(2, [before, before])
        assert len(unfinished.kept([2], pytest.fail)[2]) == 2
        clock.monotonic = lambda: 1e9 + cache.KEEP_SECONDS - 1
        unfinished.keep(2, [before])
        assert len(unfinished.kept([2], pytest.fail)[2]) == 2
    unfinished.write(2, rows(SHARDS[2]))
    assert unfinished.kept([2], pytest.fail) == {}


def test_damage_after_an_interruption_is_found(unfinished: FeatureStore, warnings: list[str]) -> None:
    file, part = unfinished.file(0), unfinished.folder / "00002.part.npz"
    for harmed in (file, part):
        data = bytearray(harmed.read_bytes())
        data[data.find(rows(range(10, 11)).tobytes()) if harmed == part else -7] ^= 1
        harmed.write_bytes(data)
    assert unfinished.missing(warnings.append) == [0, 2]
    assert unfinished.kept([0, 2], warnings.append) == {}
    assert warnings == [f"{each} is damaged: its features are computed again" for each in (file, part)]


def test_damage_before_the_end_does_not_get_a_checksum_of_its_own(
    unfinished: FeatureStore, warnings: list[str]
) -> None:
    unfinished.start(unfinished.missing(warnings.append))
    data = bytearray(unfinished.file(0).read_bytes())
    data[-7] ^= 1
    unfinished.file(0).write_bytes(data)
    unfinished.write(2, rows(SHARDS[2]))
    unfinished.finish(MADE_FROM)
    assert unfinished.missing(warnings.append) == [0]


def test_shards_of_older_versions_without_checksums_are_computed_again(
    unfinished: FeatureStore, warnings: list[str]
) -> None:
    (unfinished.folder / CHECKSUMS).unlink()
    assert unfinished.missing(warnings.append) == [0, 1, 2]
    assert warnings == [
        f"{unfinished.file(number)} has no checksum: its features are computed again" for number in (0, 1)
    ]


@pytest.mark.parametrize("text", ["", "[]", '{"x": 1}', "null"])
def test_damaged_checksums_of_unfinished_features(unfinished: FeatureStore, warnings: list[str], text: str) -> None:
    (unfinished.folder / CHECKSUMS).write_text(text)
    assert unfinished.missing(warnings.append) == [0, 1, 2]
    assert warnings == [f"{unfinished.folder / CHECKSUMS} is damaged: these features are computed again"]
    unfinished.start([0, 1, 2])
    assert unfinished.missing(warnings.append) == [0, 1, 2]


def test_meta_tells_what_the_features_were_made_from(store: FeatureStore) -> None:
    meta = json.loads((store.folder / META).read_text())
    assert meta["made_from"] == MADE_FROM
    assert (meta["images"], meta["width"], len(meta["crc32"])) == (12, WIDTH, 3)


def test_process_that_does_not_see_the_files(store: FeatureStore) -> None:
    (store.folder / "00001.npy").unlink()
    with pytest.raises(UserError, match="a disk that all processes see"):
        store.open()


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = FeatureStore(tmp_path / "file" / "key", SHARDS, WIDTH)
    with pytest.raises(UserError, match=r"cannot write features to .*key .*name a folder elsewhere in EXCB_CACHE"):
        store.start([0])
    with pytest.raises(UserError, match=r"cannot write .*checksums\.json.*name a folder elsewhere in EXCB_CACHE"):
        store.write(0, rows(SHARDS[0]))


def test_disk_without_room_is_refused_before_the_work(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path / "key", [range(10**15)], WIDTH)
    with pytest.raises(UserError, match=r"12000000\.0 GB are needed and [\d.]+ GB free"):
        store.start([0])


def test_what_the_cache_holds_and_how_to_empty_it(store: FeatureStore, tmp_path: Path) -> None:
    other = FeatureStore(tmp_path / FOLDER / "other", SHARDS, WIDTH)
    other.start([0])
    other.write(0, rows(SHARDS[0]))
    (tmp_path / "splits").mkdir()  # not ours
    found = entries(tmp_path)
    assert [(entry.folder.name, entry.complete) for entry in found] == [("key", True), ("other", False)]
    assert (found[0].images, found[0].architecture, found[0].kind) == (12, "resnet18", "pooled")
    sizes = [sum(file.stat().st_size for file in entry.folder.iterdir()) for entry in found]
    assert [entry.bytes for entry in found] == sizes
    assert remove(tmp_path) == sum(sizes)
    assert [path.name for path in tmp_path.iterdir()] == ["splits"]
    assert entries(tmp_path) == []
    assert remove(tmp_path) == 0


def test_what_no_writer_has_finished_is_listed(tmp_path: Path) -> None:
    machine, other, key = "0" * 8, "f" * 8, "0123456789ab" * 2
    below = tmp_path / FOLDER / "key"
    (below / f".shard.{other}{key}.new").mkdir(parents=True)
    (below / f".shard.{other}{key}.new" / "rows").write_bytes(b"12345")
    (below / f".shard.{other}{key}.tmp").touch()
    (tmp_path / f".table.{machine}{key}.tmp").write_bytes(b"123")
    for name in (".hidden", f"table.{key}.tmp", f".table.{machine}{key}.part"):
        (tmp_path / name).touch()
    os.utime(tmp_path / f".table.{machine}{key}.tmp", (1_000_000_000, 1_000_000_000))  # the oldest comes first
    found = unfinished_files(tmp_path)
    assert {(each.path.name, each.bytes >= 5) for each in found[1:]} == {
        (f".shard.{other}{key}.new", True),
        (f".shard.{other}{key}.tmp", False),
    }
    assert (found[0].path.name, found[0].bytes, found[0].last_change.timestamp()) == (
        f".table.{machine}{key}.tmp",
        3,
        1_000_000_000,
    )
    with new_file(tmp_path / "target") as partial, new_folder(tmp_path / "folder") as made:
        assert {partial, made} <= {each.path for each in unfinished_files(tmp_path)}  # the names that writers give


def test_the_command_lists_them_and_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(["cache", "--cache", str(tmp_path)]) == 0
    assert "nfinished" not in "".join(capsys.readouterr())
    (tmp_path / f".table.{'f' * 32}.tmp").write_bytes(bytes(2**20))
    assert evaluate(["cache", "--cache", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert re.search(rf"\.table\.{'f' * 32}\.tmp +1\.0 +20\d\d-\d\d-\d\d \d\d:\d\d", shown.out)
    assert "delete those that no longer change" in shown.err


def test_where_features_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("EXCB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_root() == tmp_path / ".cache" / "excb"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "excb"
    monkeypatch.setenv("EXCB_CACHE", "~/mine")
    assert cache_root() == tmp_path / "mine"
