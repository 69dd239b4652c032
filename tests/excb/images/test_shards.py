"""Tar shards as a set of images: what is in them, who reads them, what is noticed when they change."""

import io
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from fsspec.asyn import AsyncFileSystem
from PIL import Image
from torch.utils.data import DataLoader

from excb.distributed.workers import follow_parent
from excb.errors import UserError
from excb.images.decoding import BrokenImageError
from excb.images.scanning import scan_folder
from excb.images.shards import ShardImages, open_shards
from excb.images.subset import Subset
from excb.images.tars.index import FOLDER
from excb.images.tars.places import is_shards
from excb.networks.features import Inputs
from excb.remote import byte_ranges
from excb.sources.opening import open_images
from tests.excb.images.shard_files import pack_folder, picture, tar_of, webdataset

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXCB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / FOLDER


@pytest.fixture
def shards(tmp_path: Path, cache: Path) -> Path:
    """WebDataset's layout: thirty pictures of three classes in three tars."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(3):
        (folder / f"train-{number:03}.tar").write_bytes(tar_of(webdataset(range(10 * number, 10 * number + 10), 3)))
    return folder


@pytest.fixture
def memory() -> Iterator[str]:
    """An empty place in fsspec's memory."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield "memory://bucket/set"
    system.store.clear()


def stored(images: ShardImages) -> list[bytes]:
    return [images.source(index).getvalue() for index in range(len(images))]


def test_webdataset_shards_give_their_images_and_labels_in_order(shards: Path) -> None:
    images = open_shards(str(shards))
    assert stored(images) == [picture(number) for number in range(30)]
    assert images.labels is not None
    assert images.labels.tolist() == [number % 3 for number in range(30)]
    assert images.classes == ("0", "1", "2")
    expected = [f"train-{number // 10:03}.tar/{number:06}.jpg" for number in range(30)]
    assert list(images.paths) == expected == [images.paths[index] for index in range(30)] == images.paths[:]
    assert images.paths[-1] == expected[-1]
    assert images.open(7).size == (8, 8)


def test_tars_of_class_folders_are_the_folder(tmp_path: Path, cache: Path) -> None:
    for number in range(14):
        file = tmp_path / "images" / ("cat", "dög", "10")[number % 3] / f"{number} a.v2.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(number, kind="png"))
    files = scan_folder(tmp_path / "images")
    images = open_shards(str(pack_folder(tmp_path / "images", tmp_path / "packed", count=3)))
    assert [path.partition("/")[2] for path in images.paths] == files.paths
    assert images.classes == files.classes
    assert np.array_equal(images.labels, files.labels)  # type: ignore[arg-type]
    assert stored(images) == [files.file(index).read_bytes() for index in range(14)]


@pytest.mark.parametrize(
    "text", ["{}", "{}/*.tar", "{}/train-{{000..002}}.tar", "{}/train-{{000,001,002}}.tar", "{}/train-00{{0..1}}.tar"]
)
def test_what_names_shards(shards: Path, text: str) -> None:
    text = text.format(shards)
    assert is_shards(text)
    assert len(open_images(text)) == (20 if text.endswith("1}.tar") else 30)


def test_train_inside_is_taken(shards: Path, tmp_path: Path) -> None:
    for name in ("train", "val"):
        shutil.copytree(shards, tmp_path / "both" / name)
    images = open_images(str(tmp_path / "both"))
    assert isinstance(images, ShardImages)
    assert images.root == str(tmp_path / "both" / "train")


def test_a_link_to_itself_beside_shards_is_no_folder(shards: Path) -> None:
    (shards / "loop").symlink_to("loop")
    assert is_shards(str(shards))


def test_a_folder_of_images_with_a_tar_in_it_stays_one(shards: Path) -> None:
    (shards / "cat").mkdir()
    (shards / "cat" / "1.jpg").write_bytes(picture(1))
    assert not is_shards(str(shards))
    assert list(open_images(str(shards)).paths) == ["cat/1.jpg"]
    (shards / "cat" / "1.jpg").unlink()
    with pytest.raises(UserError, match=r"no image below .*; name tars as '.*/\*\.tar'"):
        open_images(str(shards))


# ---------------------------------------------------------------------------------------------------------------------
# The index
# ---------------------------------------------------------------------------------------------------------------------


def test_shards_are_indexed_once(shards: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    first = open_shards(str(shards), told.append)
    assert told == ["indexing 3 shards, once"]
    with monkeypatch.context() as patch:
        patch.setattr(byte_ranges, "open_sequential", None)  # none is read
        second = open_shards(str(shards), told.append)
        assert open_shards(f"{shards}/train-{{000..002}}.tar", told.append).fingerprint == first.fingerprint
    assert told == ["indexing 3 shards, once"]
    assert second.fingerprint == first.fingerprint
    assert stored(second) == stored(first)
    assert len(list(cache.glob("*.npz"))) == 1


def test_a_changed_shard_alone_is_indexed_again(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_shards(str(shards))
    (shards / "train-001.tar").write_bytes(tar_of(webdataset(range(50, 57), 2)))
    told: list[str] = []
    read = byte_ranges.open_sequential
    asked: list[str] = []
    monkeypatch.setattr(byte_ranges, "open_sequential", lambda place: asked.append(place) or read(place))  # type: ignore[func-returns-value]
    after = open_shards(str(shards), told.append)
    assert asked == [str(shards / "train-001.tar")]
    assert told[0] == f"1 of 3 shards changed, such as {shards}/train-001.tar"
    numbers = [*range(10), *range(50, 57), *range(20, 30)]
    assert stored(after) == [picture(number) for number in numbers]
    assert after.labels is not None
    assert after.labels.tolist() == [number % 2 if 50 <= number < 57 else number % 3 for number in numbers]
    assert before.fingerprint != after.fingerprint
    assert before.stamp(0) == after.stamp(0)
    assert before.stamp(12) != after.stamp(12)


def test_a_shard_that_changes_while_it_is_in_use_is_noticed(shards: Path) -> None:
    images = open_shards(str(shards))
    os.utime(shards / "train-000.tar", ns=(0, 0))
    with pytest.raises(BrokenImageError, match=r"train-000\.tar has changed since this run began"):
        images.open(3)
    assert images.open(13).size == (8, 8)
    (shards / "train-002.tar").unlink()
    with pytest.raises(BrokenImageError, match="No such file"):
        images.open(23)


def test_copies_on_another_machine_have_times_of_their_own(shards: Path) -> None:
    images = open_shards(str(shards))
    os.utime(shards / "train-000.tar", ns=(0, 0))
    there = pickle.loads(pickle.dumps(images)).here()
    assert stored(there) == [picture(number) for number in range(30)]
    assert there.fingerprint == images.fingerprint
    with (shards / "train-001.tar").open("ab") as stream:
        stream.write(bytes(512))
    with pytest.raises(UserError, match=r"train-001\.tar has another size here than on rank 0"):
        images.here()


@pytest.mark.parametrize("damage", [b"", b"PK\3\4 no archive", None])
def test_a_damaged_index_is_made_again(shards: Path, cache: Path, damage: bytes | None) -> None:
    whole = stored(open_shards(str(shards)))
    file = next(cache.glob("*.npz"))
    content = bytearray(file.read_bytes())
    content[content.index(b"000003.jpg")] ^= 1  # zip's checksum
    file.write_bytes(content if damage is None else damage)
    told: list[str] = []
    assert stored(open_shards(str(shards), told.append)) == whole
    assert "is damaged" in told[0]
    assert told[-1] == "indexing 3 shards, once"


def test_without_a_cache_it_goes_on_and_says_so(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EXCB_CACHE", str(tmp_path / "file" / "cache"))
    told: list[str] = []
    assert len(open_shards(str(shards), told.append)) == 30
    assert told[-1].startswith("the index of the shards is not kept: cannot write ")


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("spawn", 1)])  # each spawned one imports torch
def test_worker_processes_read_the_same(shards: Path, start: str, workers: int) -> None:
    images = open_shards(str(shards))
    images.open(0)  # this process has a shard open already
    loader = DataLoader(
        Inputs(images, _pixels),
        batch_size=4,
        num_workers=workers,
        multiprocessing_context=start,
        worker_init_fn=follow_parent,
    )
    read = [row for indices, rows in loader for row in zip(indices.tolist(), rows, strict=True)]
    assert [index for index, _ in read] == list(range(30))
    assert all(np.array_equal(row, np.asarray(images.open(index))) for index, row in read)


def _pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image))


def test_few_files_stay_open_and_none_crosses_a_fork(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened() -> int:
        links = list(Path("/proc/self/fd").iterdir())
        return sum(link.exists() and link.resolve().is_relative_to(shards) for link in links)

    monkeypatch.setattr(byte_ranges, "MOST_OPEN", 2)
    images = open_shards(str(shards))
    for index in (0, 10, 20, 1, 11, 21):
        images.open(index)
    assert opened() == 2
    copy = pickle.loads(pickle.dumps(images))
    assert opened() == 2
    copy.open(5)
    assert opened() == 3
    child = os.fork()
    if not child:
        images.open(6)
        copy.open(6)
        os._exit(opened())  # one each, of this process's own
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    del images, copy
    assert opened() == 0


def test_a_subset_reads_what_was_chosen(shards: Path) -> None:
    whole = open_shards(str(shards))
    some = Subset(whole, np.array([21, 4]))
    assert list(some.paths) == [whole.paths[21], whole.paths[4]]
    assert some.labels is not None
    assert some.labels.tolist() == [0, 1]
    assert np.array_equal(np.asarray(some.open(0)), np.asarray(whole.open(21)))
    assert (some.stamp(1), len(some), some.classes) == (whole.stamp(4), 2, whole.classes)
    assert some.fingerprint != Subset(whole, np.array([4, 21])).fingerprint


# ---------------------------------------------------------------------------------------------------------------------
# Over fsspec
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["", "/train", "/train/*.tar", "/train/t-{0..2}.tar"])
def test_remote_shards_are_the_local_ones(shards: Path, cache: Path, memory: str, ending: str) -> None:
    for number, file in enumerate(sorted(shards.glob("*.tar"))):
        fsspec.filesystem("memory").pipe(f"{memory}/train/t-{number}.tar", file.read_bytes())
    told: list[str] = []
    remote, local = open_images(memory + ending, told.append), open_shards(str(shards))
    assert isinstance(remote, ShardImages)
    assert stored(remote) == stored(local)
    assert np.array_equal(remote.labels, local.labels)  # type: ignore[arg-type]
    assert remote.root == f"{memory}{ending or '/train'}"
    open_images(memory + ending, told.append)
    assert told == ["indexing 3 shards, once"]
    fsspec.filesystem("memory").pipe(f"{memory}/train/t-1.tar", tar_of(webdataset(range(5), 3)))
    assert len(open_images(memory + ending, told.append)) == 25


class Asynchronous(AsyncFileSystem):
    """fsspec's memory, reached as s3fs and gcsfs reach theirs: by an event loop in a thread, which no fork copies."""

    protocol = "asynchronous"

    async def _info(self, path: str, **_options: object) -> dict[str, object]:
        return {"name": path, "type": "file", "size": len(await self._cat_file(path))}

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_options: object) -> bytes:
        content: bytes = fsspec.filesystem("memory").cat_file(f"/{path}")
        return content[start:end]

    def _open(self, path: str, *_options: object, **_named: object) -> io.BytesIO:
        return io.BytesIO(self.cat_file(path))


def test_workers_read_from_asynchronous_stores(memory: str, cache: Path) -> None:
    fsspec.register_implementation("asynchronous", Asynchronous, clobber=True)
    fsspec.filesystem("memory").pipe("memory://bucket/t.tar", tar_of(webdataset(range(8), 2)))
    images = open_shards("asynchronous://bucket/t.tar")
    assert images.source(0).getvalue() == picture(0)  # the loop's thread runs
    loader = DataLoader(
        Inputs(images, _pixels), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    read = [row for _, rows in loader for row in rows]
    assert all(np.array_equal(row, np.asarray(images.open(index))) for index, row in enumerate(read))
    assert len(read) == 8


def test_a_remote_read_is_tried_again(memory: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe(f"{memory}/t.tar", tar_of(webdataset(range(4), 2)))
    images = open_shards(f"{memory}/t.tar")
    read, failing = fsspec.implementations.memory.MemoryFileSystem.cat_file, [1, 1, 0]

    def unsteady(system: object, path: str, **options: int) -> bytes:
        if failing.pop(0):
            raise TimeoutError("the line is bad")
        return read(system, path, **options)

    monkeypatch.setattr(fsspec.implementations.memory.MemoryFileSystem, "cat_file", unsteady)
    monkeypatch.setattr(byte_ranges, "PAUSES", (0.0, 0.0))
    assert images.source(2).getvalue() == picture(2)
    failing[:] = [1, 1, 1]
    with pytest.raises(BrokenImageError, match="TimeoutError: the line is bad"):
        images.open(2)


@pytest.mark.parametrize("gives", [lambda whole, start, end: whole, lambda whole, start, end: whole[start:end][:-1]])
def test_a_server_that_gives_other_bytes_than_were_asked_for_is_noticed(
    memory: str, cache: Path, monkeypatch: pytest.MonkeyPatch, gives: Callable[[bytes, int, int], bytes]
) -> None:
    whole = tar_of(webdataset(range(4), 2))
    fsspec.filesystem("memory").pipe(f"{memory}/t.tar", whole)
    images = open_shards(f"{memory}/t.tar")
    monkeypatch.setattr(
        fsspec.implementations.memory.MemoryFileSystem,
        "cat_file",
        lambda _system, _path, start, end: gives(whole, start, end),
    )
    with pytest.raises(BrokenImageError, match=r"t\.tar gave .* bytes for .* from byte"):
        images.open(2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memory://nowhere", "no tar at memory://nowhere: name a tar, a folder of tars"),
        ("memory://nowhere/{0..3}.tar", r"cannot find memory://nowhere/0\.tar .*: check the name"),
        ("nosuch://bucket/*.tar", r"cannot list nosuch://bucket/\*\.tar .*Protocol not known"),
        ("TMP/none-*.tar", "no tar at .*none"),
        ("TMP/none.tar", r"cannot find .*none\.tar .*No such file"),
        ("TMP/{0..99999999}.tar", "stands for more than 1,000,000 shards"),
        ("TMP/text.tar", r"text\.tar \(1 shard\): it needs files ending in .jpg"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, cache: Path, memory: str, text: str, words: str) -> None:
    (tmp_path / "text.tar").write_bytes(tar_of({"a.txt": b"no image"}))
    with pytest.raises(UserError, match=words):
        open_images(text.replace("TMP", str(tmp_path)))


def test_nobody_waits_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0.tar")
    with pytest.raises(UserError, match=r"cannot read .*0\.tar \(it is not a regular file\)"):
        open_shards(str(tmp_path))
