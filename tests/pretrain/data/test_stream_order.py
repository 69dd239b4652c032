"""Streams: their order by an independent shuffle buffer, exact resume at any step, and runs that are stopped."""

import io
import itertools
import json
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image

from excb import seeding
from excb.checkpoint import run_checkpoint
from excb.distributed.workers import ReadingError
from excb.errors import UserError
from excb.images.decoding import BrokenImageError
from excb.images.image_set import clipped_ledger, clipped_of
from excb.images.pixels import Pixels
from excb.images.survey import with_pixels
from excb.pretrain.__main__ import main
from excb.pretrain.data.hub_stream import open_stream
from excb.pretrain.data.loader import TrainingViews
from excb.pretrain.data.sampler import SampleRef
from excb.pretrain.data.stream_images import StreamImages, sample_of
from excb.pretrain.data.stream_order import ShardReader, State, StreamBatchSampler, reader_count
from excb.pretrain.overrides import apply, find_recipe
from tests.excb.images.deep_files import ramp
from tests.pretrain.small_runs import OVERRIDES, stopped_before
from tests.pretrain.stream_files import stored_picture, write_parquet
from tests.pretrain.test_parallel import EXACT, assert_same_run

pytest.importorskip("datasets")
pytestmark = [
    pytest.mark.usefixtures("one_thread", "short_end"),
    # datasets 5.2, 2026-11: its writer leaves a file for the garbage collector to close
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SIZES = (9, 4, 11, 7)  # images of each shard


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("stream"), SIZES)


@pytest.fixture
def stream(folder: Path) -> StreamImages:
    return open_stream(f"hf-stream:{folder},buffer=6")


class Numbers(StreamImages):
    """A stream of names instead of images, without files."""

    def rows(self, shard: int, first: int = 0) -> Generator[bytes]:
        for row in range(first, self.sizes[shard]):
            yield f"{shard}/{row}".encode()


def numbers(buffer: int, sizes: tuple[int, ...] = SIZES) -> StreamImages:
    return Numbers("hf-stream:numbers", tuple(map(str, range(len(sizes)))), sizes, "picture", buffer)


def images(refs: list[SampleRef]) -> list[str]:
    return [(ref.content or b"").decode() for ref in refs]


# ---------------------------------------------------------------------------------------------------------------------
# One shard reader
# ---------------------------------------------------------------------------------------------------------------------


def in_turns(shards: list[int], reader: int, seed: int) -> Iterator[str]:
    """The rows of a reader's shards, pass after pass, by plain loops."""
    for turn in itertools.count():
        order = seeding.generator(seeding.Purpose.STREAM, seed, reader, turn, 1).permutation(len(shards))
        for place in order:
            for row in range(SIZES[shards[place]]):
                yield f"{shards[place]}/{row}"


@pytest.mark.parametrize(("reader", "readers", "buffer"), [(0, 1, 5), (1, 2, 8), (0, 2, 1), (0, 1, 100)])
def test_a_shard_reader_is_a_shuffle_buffer_over_its_shards(reader: int, readers: int, buffer: int) -> None:
    source = in_turns(list(range(reader, len(SIZES), readers)), reader, seed=3)
    waiting = [next(source) for _ in range(max(1, buffer // readers))]
    drawn = ShardReader(numbers(buffer), reader, readers, seed=3)
    for draw in range(200):
        place = int(seeding.generator(seeding.Purpose.STREAM, 3, reader, draw).integers(len(waiting)))
        shard, row, content = drawn.draw()
        assert content.decode() == f"{shard}/{row}" == waiting[place]
        waiting[place] = next(source)


def test_no_image_comes_too_early_and_none_is_lost() -> None:
    reader, buffer = ShardReader(numbers(6), 0, 1, seed=0), 6
    places: dict[str, list[int]] = {}
    for place, name in enumerate(itertools.islice(in_turns([0, 1, 2, 3], 0, seed=0), 1000)):
        places.setdefault(name, []).append(place)
    seen: Counter[str] = Counter()
    for place in range(600):
        name = reader.draw()[2].decode()
        assert place > places[name][seen[name]] - buffer
        seen[name] += 1
    assert len(seen) == sum(SIZES)
    assert max(seen.values()) - min(seen.values()) <= 4


# ---------------------------------------------------------------------------------------------------------------------
# Batches
# ---------------------------------------------------------------------------------------------------------------------


def batches(
    stream: StreamImages, steps: range, rank: int = 0, world_size: int = 1, *, state: State | None = None
) -> StreamBatchSampler:
    return StreamBatchSampler(
        stream, 8, seed=1, start=steps.start, stop=steps.stop, rank=rank, world_size=world_size, state=state
    )


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_the_batches_of_one(processes: int) -> None:
    whole = list(batches(numbers(12), range(20)))
    parts = [list(batches(numbers(12), range(20), number, processes)) for number in range(processes)]
    assert [list(itertools.chain(*each)) for each in zip(*parts, strict=True)] == whole
    assert [[ref.position for ref in refs] for refs in whole[:3]] == [list(range(n, n + 8)) for n in (0, 8, 16)]
    assert [refs[0].epoch for refs in whole[:7]] == [0, 0, 0, 1, 1, 1, 2]
    assert len({ref.sample for refs in whole for ref in refs}) == sum(SIZES)


@pytest.mark.parametrize("stop", [0, 1, 5, 13])
def test_a_state_is_gone_on_from_exactly(stop: int) -> None:
    whole = list(batches(numbers(12), range(20)))
    begun = batches(numbers(12), range(20))
    for _ in zip(range(stop), begun, strict=False):
        pass
    state = {name: torch.tensor(part.tolist()) for name, part in begun.state_after(stop).items()}
    assert list(batches(numbers(12), range(stop, 20), state=state)) == whole[stop:]
    halves = [list(batches(numbers(12), range(stop, 20), number, 2, state=state)) for number in range(2)]
    assert [one + other for one, other in zip(*halves, strict=True)] == whole[stop:]


def test_states_that_nobody_will_ask_for_are_forgotten() -> None:
    sampler = batches(numbers(12), range(40))
    for step, _ in enumerate(sampler, start=1):
        sampler.step_done(step)
        assert len(sampler._states) < 12  # those read ahead and a few behind, however long the run
    assert sampler.state_after(40).keys() == {"counts", "waiting"}


def test_an_error_in_the_thread_is_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = numbers(4, (40,))
    sampler = batches(stream, range(20))

    def fail(_reader: ShardReader) -> None:
        raise UserError("the network is gone")

    monkeypatch.setattr(ShardReader, "draw", fail)
    with pytest.raises(ReadingError, match="the network is gone") as caught:
        list(sampler)
    assert caught.value.rank_local


def test_shards_that_hold_nothing() -> None:
    with pytest.raises(UserError, match=r"shards \[0, 2\] of hf-stream:numbers hold no image"):
        ShardReader(numbers(4, (0, 3, 0, 3)), 0, 2, seed=0)
    assert ShardReader(numbers(4, (0, 3, 1)), 0, 2, seed=0).draw()[2] == b"2/0"


def test_a_stream_that_has_lost_rows() -> None:
    begun = batches(numbers(12), range(3))
    list(begun)
    with pytest.raises(UserError, match=r"has changed .*is gone"):
        batches(numbers(12, (1, 1, 1, 1)), range(3, 4), state=begun.state_after(3))


def test_ranks_that_cannot_share_the_readers() -> None:
    assert reader_count(numbers(12), 8, 2) == 4
    assert reader_count(numbers(12), 9, 1) == 3
    with pytest.raises(
        UserError, match=r"4 shards, which for a batch of 9 means 3 shard readers: 2 processes .* 1, 3 can"
    ):
        reader_count(numbers(12), 9, 2)


# ---------------------------------------------------------------------------------------------------------------------
# Data sets
# ---------------------------------------------------------------------------------------------------------------------


def test_a_data_set_is_read_as_it_is_stored(stream: StreamImages, folder: Path) -> None:
    first = [sum(SIZES[:shard]) for shard in range(len(SIZES))]
    stream = pickle.loads(pickle.dumps(stream))
    assert (stream.shards, stream.column, len(stream), stream.sizes) == (4, "picture", 31, SIZES)
    for shard, size in enumerate(SIZES):
        assert list(stream.rows(shard)) == [stored_picture(first[shard] + row) for row in range(size)]
        assert list(stream.rows(shard, 3)) == [stored_picture(first[shard] + row) for row in range(3, size)]
    kept = stream.kept
    assert kept.paths[:5] == ["shard 0, row 0", "shard 1, row 0", "shard 2, row 0", "shard 3, row 0", "shard 0, row 1"]
    assert len(kept) == sum(SIZES)
    assert kept.open(1).size == (36, 36)
    with pytest.raises(BrokenImageError, match="is a stream"):
        stream.open(0)
    assert stream.fingerprint != open_stream(f"hf-stream:{folder},buffer=7").fingerprint


def test_files_elsewhere_are_read_by_range(stream: StreamImages) -> None:
    memory = fsspec.filesystem("memory")
    for shard, file in enumerate(stream.files):
        memory.pipe_file(f"/stream/{shard}.parquet", Path(file).read_bytes())
    remote = replace(stream, files=tuple(f"memory://stream/{shard}.parquet" for shard in range(4)))
    assert list(remote.rows(2, 5)) == list(stream.rows(2, 5))
    memory.rm("/stream", recursive=True)
    with pytest.raises(UserError, match=r"cannot read memory://stream/2\.parquet .*check your access"):
        list(remote.rows(2))


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (",buffer=0", "buffer takes a number above zero"),
        (",bufer=3", "did you mean 'buffer'"),
        (",buffer=3,buffer=4", "once each"),
        (",split=nope", "has no split 'nope', only train"),
    ],
)
def test_names_that_mean_nothing(folder: Path, words: str, messages: str) -> None:
    with pytest.raises(UserError, match=messages):
        open_stream(f"hf-stream:{folder}{words}")


def test_other_mistakes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"hf-stream:{folder}"

    def refused(*arguments: str) -> str:
        assert main(list(arguments)) == 2
        messages = capsys.readouterr().err.splitlines()
        assert len(messages) == 1
        return messages[0]

    out = ["--out", str(tmp_path / "run")]
    assert "cannot open hf-stream:/no/such/folder" in refused("quickstart", "--data", "hf-stream:/no/such/folder", *out)
    assert "leave one of them out" in refused("quickstart", "--data", name, "--list", "files.txt", *out)
    for command in (["plan", "quickstart"], ["doctor"], ["study", "form"]):
        assert f"{command[0]} needs images in files or tar shards" in refused(*command, "--data", name)
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'excb[datasets]'" in refused("quickstart", "--data", name, *out)


# ---------------------------------------------------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------------------------------------------------


def command(folder: Path, out: Path, *more: str) -> list[str]:
    data = f"hf-stream:{folder},buffer=6"
    return ["quickstart", "--data", data, "--out", str(out), *OVERRIDES, "monitor.every_epochs=1", *more]


def state(out: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(out)[0])["model"]
    return tensors


def test_a_stopped_run_resumes_as_the_undisturbed_one(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(folder, tmp_path / "whole")) == 0
    messages = capsys.readouterr().err
    assert (
        "a stream of 4 shards, 4 shard readers and a shuffle buffer of 1 image in each. The shuffle is local"
        in messages
    )
    one = state(tmp_path / "whole")
    for workers in (0, 2):
        out = tmp_path / f"run{workers}"
        with stopped_before(4):
            assert main(command(folder, out, f"efficiency.workers={workers}")) == 143
        assert main(command(folder, out)) == 0
        other = state(out)
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert json.loads((out / "report.json").read_text())["images"] == 31


def test_broken_images_are_replaced_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_parquet(tmp_path / "stream", SIZES, changed={10: b"no picture", 14: None})
    assert main(command(folder, tmp_path / "run", "optim.epochs=1")) == 0
    messages = capsys.readouterr().err
    assert "shard 1, row 1 cannot be read (UnidentifiedImageError" in messages
    assert "replaces it" in messages
    drawn = StreamBatchSampler(open_stream(f"hf-stream:{folder},buffer=6"), 8, seed=0, start=0, stop=3)
    names = [ref.name for refs in drawn for ref in refs]
    broken = ["shard 1, row 1", "shard 2, row 1"]
    found = run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(tmp_path / "run")[0])["broken"]
    assert found == {"seen": 24, "found": sum(map(names.count, broken))}
    assert messages.count("replaces it") == len({*names} & {*broken})  # each is named once


def test_another_buffer_is_another_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(folder, tmp_path / "run", "optim.epochs=1")) == 0
    capsys.readouterr()
    other = [word.replace("buffer=6", "buffer=8") for word in command(folder, tmp_path / "run", "optim.epochs=1")]
    assert main(other) == 2
    assert "belongs to another run (other images)" in capsys.readouterr().err


def test_a_shard_that_fails_during_the_run_loses_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("optim.epochs=5", "monitor.every_epochs=5")
    assert main(command(folder, tmp_path / "whole", *words)) == 0
    one, usual = state(tmp_path / "whole"), ShardReader._next

    def fail(reader: ShardReader) -> tuple[int, int, bytes]:
        if reader._draws == 20:  # 2 images of each reader a step
            raise UserError("cannot read the shard")
        return usual(reader)

    for workers in (0, 2):
        line = command(folder, tmp_path / f"run{workers}", *words, f"efficiency.workers={workers}")
        with monkeypatch.context() as patch:
            patch.setattr(ShardReader, "_next", fail)
            assert main(line) == 2
        messages = capsys.readouterr().err.splitlines()[-1]
        found = re.search(r"error: cannot read the shard; step (\d+) is saved: repeat the command to resume", messages)
        assert found is not None
        assert 4 <= int(found[1]) <= 10  # but for what workers had not read yet
        assert main(line) == 0
        other = state(tmp_path / f"run{workers}")
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_two_processes_are_one_run_also_gone_on_with_by_one(folder: Path, tmp_path: Path) -> None:
    exact = [word for word in EXACT if not word.startswith("optim.batch")]
    assert main(command(folder, tmp_path / "one", *exact)) == 0
    # torchrun starts new interpreters.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "excb.pretrain"]
    two = command(folder, tmp_path / "two", *exact)
    subprocess.run([*torchrun, *two], check=True, timeout=300, capture_output=True)
    assert_same_run(tmp_path / "one", tmp_path / "two")
    for file in run_checkpoint.in_run(tmp_path / "two")[:1]:
        file.unlink()
    assert main(two) == 0
    assert_same_run(tmp_path / "one", tmp_path / "two")


def test_images_outside_the_range_are_marked_by_their_place_in_the_stream(tmp_path: Path) -> None:
    deep: dict[int, bytes | None] = {number: encoded_ramp(500 if number in (1, 5, 6) else 90) for number in range(9)}
    write_parquet(tmp_path, (4, 5), changed=deep)
    stream = with_pixels(open_stream(f"{tmp_path},buffer=2"), Pixels.declared("0..100"))
    recipe = apply(find_recipe("quickstart"), [*OVERRIDES])
    views = TrainingViews(stream.kept, recipe)
    for shard, row in ((0, 1), (1, 0), (1, 2)):
        content = next(stream.rows(shard, row))
        assert views[SampleRef(0, 0, sample_of(shard, row), content)].used == sample_of(shard, row)
    assert clipped_of(stream).indices == [1, 6]  # type: ignore[union-attr, unused-ignore]
    assert stream.kept.paths[3] == "shard 1, row 1"  # the sixth of the stream, which takes a broken one's place
    stream.kept.open(3)
    (entry,) = clipped_ledger(stream).entries
    assert (entry.count, entry.names) == (3, ())


def encoded_ramp(top: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(ramp(0, top, np.uint16, 40)).save(stream, "png")
    return stream.getvalue()
