"""Tests of features from the cache: what makes them anew, how stopped work resumes, one answer for many processes."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.features import cache, extraction
from excb.features.extraction import Extraction, files_hash, modules_hash
from excb.features.listing import FOLDER, META, entries
from excb.files import locks
from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder
from excb.networks.backbone import weights_hash
from excb.sources.torchvision_sets import ArrayImages
from excb.transfer.task import Task
from tests.excb.images.deep_files import BLUE, GREEN, RED, linear_profile
from tests.forked import server
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import assert_features, changed, features_by_loop, write_folder

QUIET = Reporter(quiet=True)
SHARD_BYTES = 5 * 32 * 4  # five images of the tiny network


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cache, "SHARD_BYTES", SHARD_BYTES)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen train and seven test images, and two runs."""
    place = tmp_path_factory.mktemp("extraction")
    for name, step in (("run", 5), ("other", 6)):
        write_run(place / name, step, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_folder(place / "train", each=2, seed=1)
    write_folder(place / "test", each=1, seed=2)
    return place


def prepare(place: Path, cache: Path | None, run: str = "run", **options: Any) -> Task:
    usual: dict[str, Any] = {"device": "cpu", "batch": 3, "workers": 0}
    return Task.prepare(str(place / run), place / "train", place / "test", cache=cache, **usual | options)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Indices of the images that were opened."""
    opened: list[int] = []
    read = ImageSet.open

    def watched(images: ImageSet, index: int) -> Image.Image:
        opened.append(index)
        return read(images, index)

    monkeypatch.setattr(ImageSet, "open", watched)
    return opened


def test_second_time_comes_from_the_disk(place: Path, tmp_path: Path, opened: list[int]) -> None:
    rows, labels = prepare(place, tmp_path).features(prepare(place, None).train, "train", QUIET)
    assert opened == list(range(14))
    expected, _ = features_by_loop(excb.load(place / "run"), place / "train")
    assert_features(rows.numpy(), expected)
    opened.clear()
    task = prepare(place, tmp_path, batch=64)
    again, same = task.features(task.train, "train", QUIET)
    assert opened == []
    assert torch.equal(again, rows)
    assert torch.equal(same, labels)
    stored = task.stored(task.train, "train", QUIET)
    assert torch.equal(stored.rows(3, 11), rows[3:11])
    (entry,) = entries(tmp_path)
    assert (entry.complete, entry.images, entry.architecture) == (True, 14, "timm:resnet10t")
    assert sorted(path.name for path in entry.folder.iterdir()) == ["00000.npy", "00001.npy", "00002.npy", META, "srgb"]


def test_cached_features_are_those_without_a_cache(place: Path, tmp_path: Path) -> None:
    task = prepare(place, None)
    without, _ = task.features(task.train, "train", QUIET)
    kept, _ = replace(task, cache=tmp_path).features(task.train, "train", QUIET)
    assert torch.equal(kept, without)


def test_interrupted_extraction_resumes(
    place: Path, tmp_path: Path, opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = prepare(place, tmp_path)
    expected, _ = prepare(place, None).features(task.train, "train", QUIET)
    write = cache.FeatureStore.write

    def write_once(store: Any, number: int, rows: np.ndarray) -> None:
        if number == 1:
            raise KeyboardInterrupt
        write(store, number, rows)

    with monkeypatch.context() as patch:
        patch.setattr(cache.FeatureStore, "write", write_once)
        with pytest.raises(KeyboardInterrupt):
            task.features(task.train, "train", QUIET)
    assert [entry.complete for entry in entries(tmp_path)] == [False]
    opened.clear()
    rows, _ = task.features(task.train, "train", QUIET)
    assert opened == list(range(5, 14))
    assert torch.equal(rows, expected)


def test_a_pass_that_fits_into_one_shard_resumes(
    place: Path, tmp_path: Path, opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SHARD_BYTES", 64 * 2**20)
    monkeypatch.setattr(cache, "KEEP_SECONDS", 0)
    expected, _ = prepare(place, None, batch=2).features(prepare(place, None).train, "train", QUIET)
    task = prepare(place, tmp_path, batch=2)

    def stop(images: ImageSet, index: int) -> Image.Image:
        if index == 11:
            raise KeyboardInterrupt
        return read(images, index)

    read = ImageSet.open
    with monkeypatch.context() as patch:
        patch.setattr(ImageSet, "open", stop)
        with pytest.raises(KeyboardInterrupt):
            task.features(task.train, "train", QUIET)
    names = sorted(path.name for path in entries(tmp_path)[0].folder.iterdir())
    assert names == ["00000.part.npz", "checksums.json", "srgb"]
    opened.clear()
    rows, _ = task.features(task.train, "train", QUIET)
    assert opened == list(range(8, 14))  # four batches of two were kept
    assert torch.equal(rows, expected)
    assert sorted(path.name for path in entries(tmp_path)[0].folder.iterdir()) == ["00000.npy", META, "srgb"]


def test_stop_before_the_last_word(place: Path, tmp_path: Path, opened: list[int]) -> None:
    task = prepare(place, tmp_path)
    with (
        mock.patch.object(cache.FeatureStore, "finish", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        task.features(task.test, "test", QUIET)  # all shards are there
    opened.clear()
    rows, _ = prepare(place, None).features(task.test, "test", QUIET)
    opened.clear()
    assert torch.equal(task.features(task.test, "test", QUIET)[0], rows)
    assert opened == []
    assert entries(tmp_path)[0].complete


def test_damage_is_recomputed_with_a_warning(
    place: Path, tmp_path: Path, opened: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    task = prepare(place, tmp_path)
    rows, _ = task.features(task.train, "train", QUIET)
    rows = rows.clone()
    file = entries(tmp_path)[0].folder / "00001.npy"
    data = bytearray(file.read_bytes())
    data[-3] ^= 4
    file.write_bytes(data)
    opened.clear()
    again, _ = task.features(task.train, "train", Reporter())
    assert opened == list(range(5, 10))
    assert torch.equal(again, rows)
    assert f"warning: {file} is damaged: its features are computed again" in capsys.readouterr().err


def test_unreadable_images_are_all_counted(place: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", each=4, classes=("ant", "bee", "cat"))
    for name in ("ant/1.png", "bee/0.png", "cat/2.png"):
        (folder / name).write_bytes(b"nothing")
    task = Task.prepare(str(place / "run"), folder, folder, device="cpu", batch=2, workers=0, cache=tmp_path)
    with pytest.raises(UserError, match=r"3 of 12 images in .* cannot be read, such as ant/1\.png \(.+\): fix or"):
        task.features(task.train, "train", QUIET)
    assert not entries(tmp_path)[0].complete


# ---------------------------------------------------------------------------------------------------------------------
# What features depend on
# ---------------------------------------------------------------------------------------------------------------------


def address(what: Extraction) -> str:
    return what.store(Path(), what.description()).folder.name


def test_address_depends_on_all_that_changes_features(place: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", each=1)
    file, (task, again) = folder / "ant" / "0.png", (prepare(place, None) for _ in range(2))
    usual = again.extraction(changed(task.train, root=folder))
    seen = [address(usual)]

    def differs(other: Extraction) -> None:
        seen.append(address(other))
        assert len(set(seen)) == len(seen)

    differs(task.extraction(task.test))
    differs(prepare(place, None, "other").extraction(usual.images))
    differs(prepare(place, None, network="student").extraction(usual.images))
    differs(prepare(place, None, crop=24).extraction(usual.images))
    differs(replace(usual, device=torch.device("meta")))
    norm = next(module for module in again.backbone.network.modules() if isinstance(module, nn.BatchNorm2d))
    norm.eps *= 2
    differs(usual)
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1000))
    differs(usual)


def test_address_depends_on_nothing_else(place: Path, tmp_path: Path) -> None:
    task = prepare(place, None)
    usual = address(task.extraction(task.train))
    assert address(prepare(place, tmp_path, batch=7, workers=2).extraction(task.train)) == usual
    moved = tmp_path / "moved"
    (place / "train").rename(moved)
    try:
        assert address(task.extraction(changed(task.train, root=moved))) == usual
    finally:
        moved.rename(place / "train")


def test_library_versions_and_code_are_part_of_the_address(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = prepare(place, None)
    usual = address(task.extraction(task.test))
    with monkeypatch.context() as patch:
        patch.setattr(extraction, "CODE_VERSION", 0)
        assert address(task.extraction(task.test)) != usual
    monkeypatch.setattr(metadata, "version", lambda _name: "0")
    assert address(task.extraction(task.test)) != usual


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_weights_hash_sees_every_byte_and_name(dtype: torch.dtype) -> None:
    def module(value: Any, name: str = "a", shape: tuple[int, ...] = (2, 3)) -> nn.Module:
        holder = nn.Module()
        holder.register_buffer(name, torch.zeros(shape, dtype=dtype))
        holder.get_buffer(name).view(-1)[-1] = value
        return holder

    hashes = [weights_hash(module(0)), weights_hash(module(1)), weights_hash(module(0, "b"))]
    hashes += [weights_hash(module(0, shape=shape)) for shape in ((3, 2), (1,), ())]
    assert len(set(hashes)) == len(hashes)
    assert weights_hash(module(1)) == hashes[1]


def test_modules_are_told_apart_by_settings_not_by_where_they_lie_in_memory() -> None:
    class Activated(nn.Module):
        def __init__(self, function: Any, slope: float) -> None:
            super().__init__()
            self.function, self.slope = function, slope

        def extra_repr(self) -> str:
            return f"{self.function}, {self.slope}"

    def function() -> Any:
        return lambda value: value

    first, second = function(), function()
    assert repr(Activated(first, 1)) != repr(Activated(second, 1))
    assert modules_hash(Activated(first, 1)) == modules_hash(Activated(second, 1))
    assert modules_hash(Activated(first, 1)) != modules_hash(Activated(first, 2))


def full(*_arguments: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory\nand many more lines")


def test_memory_that_does_not_suffice_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = prepare(place, None)
    monkeypatch.setattr(task.backbone.network, "forward", full)
    with pytest.raises(UserError, match="3 images do not fit into the memory of cpu: use a smaller --batch-size"):
        task.features(task.test, "test", QUIET)


def test_the_caller_says_what_to_do_about_memory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = prepare(place, None)
    evaluation = task.extraction(task.test)
    pretraining = replace(evaluation, advice="lower teacher.batch")
    assert pretraining.description() == evaluation.description()  # one place in the cache for both
    monkeypatch.setattr(task.backbone.network, "forward", full)
    with pytest.raises(UserError, match=r"do not fit into the memory of cpu: lower teacher\.batch$"):
        extraction.features_of(pretraining, None, QUIET, name="test")


def test_source_without_files_counts_by_its_fingerprint(place: Path) -> None:
    memory = ArrayImages(place, "test", np.zeros((3, 4, 4), np.uint8), np.arange(3), ("a", "b", "c"))
    assert files_hash(memory) == files_hash(ImageSet(place, []))
    assert files_hash(ImageSet(place, ["nowhere.png"])) != files_hash(ImageSet(place, []))


# ---------------------------------------------------------------------------------------------------------------------
# Many processes
# ---------------------------------------------------------------------------------------------------------------------


def work_together(place: Path, out: Path, processes: int, rank: int) -> None:
    """One process: features without a cache, with one, from it, with a damaged shard, and of a broken image."""
    torch.set_num_threads(1)
    cache.SHARD_BYTES = SHARD_BYTES
    dist.init_process_group("gloo", init_method=f"file://{out / 'store'}", rank=rank, world_size=processes)
    with (out / f"{rank}.log").open("w") as log, contextlib.redirect_stderr(log):
        arrays = [array for root in (None, out / "cache", out / "cache") for array in both_sets(place, root, rank)]
        dist.barrier()  # nobody reads any more
        if rank == 0:
            file = min((out / "cache").rglob("00001.npy"))
            file.write_bytes(file.read_bytes()[:-9])
        dist.barrier()
        np.savez(out / f"{rank}.npz", *arrays, *both_sets(place, out / "cache", rank))
        task = prepare(place, out / "cache")
        try:
            task.features(changed(task.train, root=place / "broken"), "broken", Reporter())
        except UserError as error:
            (out / f"{rank}.txt").write_text(f"{error.already_reported} {error}")
        task = prepare(place, None)
        if rank == 1:
            task.backbone.network.forward = full
        try:
            task.features(task.test, "test", QUIET)
        except UserError as error:
            (out / f"{rank}.full.txt").write_text(f"{error.already_reported} {error}")
    dist.destroy_process_group()


def both_sets(place: Path, root: Path | None, rank: int = 0) -> list[np.ndarray]:
    """Features of both sets, in memory; batches of three, since that is the smallest that a process has chosen."""
    task = prepare(place, root, batch=3 + rank)
    return [task.features(images, "set", Reporter())[0].numpy().copy() for images in (task.train, task.test)]


@pytest.mark.parametrize("processes", [2, 3])
def test_many_processes_give_the_rows_of_one(place: Path, tmp_path: Path, processes: int) -> None:
    if not (place / "broken").exists():
        (write_folder(place / "broken", each=2, seed=1) / "bee" / "1.png").write_bytes(b"nothing")
    expected = both_sets(place, None)
    running = [
        server().Process(target=work_together, args=(place, tmp_path, processes, rank)) for rank in range(processes)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
    assert [process.exitcode for process in running] == [0] * processes
    for rank in range(processes):
        with np.load(tmp_path / f"{rank}.npz") as found:
            assert len(found.files) == 8
            for number, name in enumerate(found.files):
                np.testing.assert_array_equal(found[name], expected[number % 2], strict=True)
        reported, _, text = (tmp_path / f"{rank}.txt").read_text().partition(" ")
        assert reported == str(rank > 0)
        assert "1 of 14 images" in text
        assert "bee/1.png" in text
        reported, _, text = (tmp_path / f"{rank}.full.txt").read_text().partition(" ")
        assert reported == str(rank != 1)
        assert text.startswith(f"process 1 of {processes}: ")
        assert "do not fit into the memory" in text
        log = (tmp_path / f"{rank}.log").read_text()
        assert log.count("is damaged: its features are computed again") == (rank == 0)
        assert (log == "") == (rank > 0)
    assert len([path for path in (tmp_path / "cache" / FOLDER).iterdir() if path.is_dir()]) == 3


def read_cold(place: Path, root: Path, number: int, together: Any) -> None:
    """One of several commands that need the features of one set at once, and how many images it opened itself."""
    torch.set_num_threads(1)
    opened, read = [], ImageSet.open

    def watched(images: ImageSet, index: int) -> Any:
        opened.append(index)
        return read(images, index)

    task = prepare(place, root)
    together.wait(60)
    with mock.patch.object(ImageSet, "open", watched), mock.patch.object(cache, "SHARD_BYTES", SHARD_BYTES):
        rows, _ = task.features(task.train, "train", QUIET)
    np.savez(root / f"{number}.npz", rows=rows.numpy(), opened=opened)


@pytest.mark.parametrize("damaged", [False, True])
def test_commands_that_share_a_cold_cache_compute_its_features_once(
    place: Path, tmp_path: Path, *, damaged: bool
) -> None:
    expected = both_sets(place, tmp_path / "before")[0]
    if damaged:
        shutil.copytree(tmp_path / "before" / FOLDER, tmp_path / FOLDER)
        for file in (tmp_path / FOLDER).rglob("00001.npy"):
            file.write_bytes(file.read_bytes()[:-1])
    context = server()
    together = context.Barrier(8)
    running = [context.Process(target=read_cold, args=(place, tmp_path, number, together)) for number in range(8)]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
    assert [process.exitcode for process in running] == [0] * 8
    opened = []
    for number in range(8):
        with np.load(tmp_path / f"{number}.npz") as found:
            np.testing.assert_array_equal(found["rows"], expected)
            opened += found["opened"].tolist()
    assert opened == list(range(5, 10) if damaged else range(14))


def test_a_process_that_computes_nothing_is_named(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "ASK", 0.01)
    monkeypatch.setattr(cache, "STALLED_SECONDS", 0.05)
    task = prepare(place, tmp_path)
    extracted = task.extraction(task.train)
    store = extracted.store(tmp_path, extracted.description())
    lock = store.lock(QUIET.note)
    assert lock is not None
    with lock, pytest.raises(UserError, match=r"computes the same features, in .* has not advanced for"):
        task.features(task.train, "train", QUIET)


def test_features_of_versions_that_ignored_colour_profiles(place: Path, tmp_path: Path, opened: list[int]) -> None:
    images, cache = tmp_path / "images", tmp_path / "cache"
    shutil.copytree(place / "test", images)
    task = prepare(place, cache)
    first = task.features(scan_folder(images), "test", QUIET)[0].clone()
    [marker] = cache.rglob("srgb")
    marker.unlink()  # as those versions left the folder
    opened.clear()
    assert torch.equal(task.features(scan_folder(images), "test", QUIET)[0], first)
    assert not opened  # no image has a profile: they stay
    assert marker.exists()
    file = next(images.rglob("*.png"))
    stat = file.stat()
    with Image.open(file) as image:
        image.convert("RGB").save(file, icc_profile=linear_profile(GREEN, RED, BLUE))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    task.features(scan_folder(images), "test", QUIET)
    [other] = [found for found in cache.rglob("srgb") if found != marker]
    other.unlink()
    opened.clear()
    task.features(scan_folder(images), "test", QUIET)
    assert len(opened) == len(scan_folder(images))
