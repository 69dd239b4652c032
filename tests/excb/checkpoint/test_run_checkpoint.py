"""Tests of run checkpoints: written whole or not at all, damage always found, and no code ever run by reading one."""

import io
import os
import pickle
import random
import re
import resource
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from excb.checkpoint import reading, run_checkpoint, untrusted
from excb.checkpoint.run_checkpoint import DamagedFileError
from excb.errors import UserError

CONTENTS: dict[str, Any] = {
    "step": 3,
    "epoch": 0.5,
    "name": "Zürich",
    "model": {"weight": torch.arange(6.0).view(2, 3), "count": torch.tensor([1, 2])},
    "nested": {"list": [1, 2.5, None, True], "half": torch.tensor([0.5], dtype=torch.bfloat16)},
}


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same to the bit, types, order and all."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def written(file: Path, **contents: Any) -> Path:
    run_checkpoint.write_run_checkpoint(CONTENTS | contents, file)
    return file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---------------------------------------------------------------------------------------------------------------------
# Writing and reading
# ---------------------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = written(tmp_path / "deep" / "folder" / "step-3.pt")
    assert equal(run_checkpoint.read_run_checkpoint(file), {"format": "excb-run", "version": 1} | CONTENTS)
    assert names(file.parent) == ["step-3.pt"]


def test_a_new_checkpoint_replaces_the_old_one(tmp_path: Path) -> None:
    file = written(tmp_path / "step-3.pt", step=1)
    written(file, step=2)
    assert run_checkpoint.read_run_checkpoint(file)["step"] == 2
    assert names(tmp_path) == ["step-3.pt"]


def test_tensors_are_read_onto_the_cpu_and_into_memory_of_their_own(tmp_path: Path) -> None:
    file = written(tmp_path / "step-3.pt")
    tensor = run_checkpoint.read_run_checkpoint(file)["model"]["weight"]
    assert tensor.device.type == "cpu"
    tensor.zero_()
    assert run_checkpoint.read_run_checkpoint(file)["model"]["weight"].sum() == 15


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("unexpected pos 64 vs 0\nat 1\n")]
)
def test_failing_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    file = written(tmp_path / "step-3.pt")
    before = file.read_bytes()

    def fail_half_way(_contents: Any, stream: io.BufferedWriter) -> None:
        stream.write(before[: len(before) // 2])
        raise error

    monkeypatch.setattr(torch, "save", fail_half_way)
    with pytest.raises(UserError, match="cannot write") as caught:
        written(file, step=4)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert file.read_bytes() == before
    assert names(tmp_path) == ["step-3.pt"]


@pytest.mark.parametrize("limit", [300, 5_000])
def test_full_disk_is_told_and_leaves_the_old_file_and_nothing_else(tmp_path: Path, limit: int) -> None:
    """A limit on the size of files fails as a full disk does: in the middle of torch's work."""
    file = written(tmp_path / "step-3.pt")
    before = file.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        with pytest.raises(UserError, match=r"cannot write .*File too large"):
            written(file, large=torch.ones(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read_bytes() == before
    assert names(tmp_path) == ["step-3.pt"]


def test_failing_write_where_there_was_none_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match="Input/output error"):
        written(tmp_path / "step-3.pt")
    assert names(tmp_path) == []


def test_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        written(tmp_path / "file" / "step-3.pt")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux, to name an open file")
def test_file_is_on_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut a name must not point to data that was never written."""
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        size = path.stat().st_size if path.is_file() else -1
        events.append(f"sync {path.name} {size == len_written[0] or size}")
        fsync(descriptor)

    def rename(source: Path, target: Path) -> Path:
        events.append(f"rename to {target.name}")
        return replace(source, target)

    len_written = [len(written(tmp_path / "other.pt").read_bytes())]
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", rename)
    written(tmp_path / "step-3.pt")
    events[0] = re.sub(r"\.[0-9a-f]{32}\.", ".", events[0])
    assert events == ["sync .step-3.pt.tmp True", "rename to step-3.pt", f"sync {tmp_path.name} -1"]


# ---------------------------------------------------------------------------------------------------------------------
# Damage
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(tmp_path_factory.mktemp("intact") / "step-3.pt").read_bytes()


def outcome(data: bytes, file: Path) -> str:
    """The outcome of reading these bytes; anything but "same" or a refusal is a bug."""
    file.write_bytes(data)
    try:
        found = run_checkpoint.read_run_checkpoint(file)
    except (DamagedFileError, UserError) as error:
        clear = str(file) in str(error) and "\n" not in str(error)
        return "unclear" if not clear else "damaged" if isinstance(error, DamagedFileError) else "refused"
    return "same" if equal(found, {"format": "excb-run", "version": 1} | CONTENTS) else "WRONG"


def flipped(data: bytes, offset: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[offset] ^= 1 << bit
    return bytes(changed)


def directory_of(data: bytes) -> int:
    """Where the zip's central directory begins."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.start_dir


def entries_of(data: bytes) -> list[int]:
    """Where the central directory's entries begin (APPNOTE.TXT of PKWARE, 4.3.12)."""
    offsets, at = [], directory_of(data)
    while data[at : at + 4] == b"PK\x01\x02":
        offsets.append(at)
        at += 46 + sum(int.from_bytes(data[at + field : at + field + 2], "little") for field in (28, 30, 32))
    return offsets


def test_undamaged_file_is_the_same(tmp_path: Path, intact: bytes) -> None:
    assert outcome(intact, tmp_path / "step-3.pt") == "same"


def test_flipped_bits_in_headers_and_data_are_found_or_harmless(tmp_path: Path, intact: bytes) -> None:
    end = directory_of(intact)
    found = {o: outcome(flipped(intact, o, o * 5 % 8), tmp_path / "step-3.pt") for o in range(0, end, 4)}
    assert set(found.values()) == {"damaged", "same"}, [
        o for o, kind in found.items() if kind not in ("damaged", "same")
    ]


def test_every_flipped_bit_in_a_tensors_data_is_found(tmp_path: Path, intact: bytes) -> None:
    data = torch.arange(6.0).numpy().tobytes()
    start = intact.index(data)
    kinds = [outcome(flipped(intact, start + i, bit), tmp_path / "x.pt") for i in range(len(data)) for bit in (0, 7)]
    assert set(kinds) == {"damaged"}


def test_flipped_bits_in_the_directory_are_found_or_harmless(tmp_path: Path, intact: bytes) -> None:
    offsets = range(directory_of(intact), len(intact))
    found = {o: outcome(flipped(intact, o, o * 3 % 8), tmp_path / "step-3.pt") for o in offsets}
    assert set(found.values()) == {"damaged", "same"}, [
        o for o, kind in found.items() if kind not in ("damaged", "same")
    ]


@pytest.mark.parametrize(
    ("field", "bit"),
    [(8, 0), (10, 3), (10, 2), (38, 4)],
    ids=["encrypted", "deflated", "unknown compression", "folder"],  # a folder would be read as whatever is in memory
)
def test_entry_that_claims_to_be_something_else_is_found(tmp_path: Path, intact: bytes, field: int, bit: int) -> None:
    entries = entries_of(intact)
    assert len(entries) > 5
    found = {outcome(flipped(intact, entry + field, bit), tmp_path / "step-3.pt") for entry in entries}
    assert found == {"damaged"}


def test_random_damage_of_many_bytes_is_found(tmp_path: Path, intact: bytes) -> None:
    chance = random.Random(7)
    for _ in range(150):
        start, length = chance.randrange(len(intact)), chance.choice([2, 8, 64, 512])
        noise = chance.choice([chance.randbytes(length), bytes(length)])[: len(intact) - start]
        found = outcome(intact[:start] + noise + intact[start + len(noise) :], tmp_path / "step-3.pt")
        assert found in ("damaged", "same"), (start, length)


def test_truncated_file_is_damaged_at_every_length(tmp_path: Path, intact: bytes) -> None:
    lengths = {*range(70), *range(0, len(intact), 13), *range(len(intact) - 70, len(intact))}
    found = {length: outcome(intact[:length], tmp_path / "step-3.pt") for length in lengths}
    assert {length: kind for length, kind in found.items() if kind != "damaged"} == {}


def test_file_of_zeros_is_damaged(tmp_path: Path, intact: bytes) -> None:
    """Some file systems leave a file of zeros after a power cut."""
    assert outcome(bytes(len(intact)), tmp_path / "step-3.pt") == "damaged"
    assert outcome(intact[:512] + bytes(len(intact) - 512), tmp_path / "step-3.pt") == "damaged"


# ---------------------------------------------------------------------------------------------------------------------
# What is not a checkpoint
# ---------------------------------------------------------------------------------------------------------------------


class RunsCode:
    """Unpickling it runs a command that leaves a file behind."""

    def __init__(self, sentinel: Path) -> None:
        self._sentinel = sentinel

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self._sentinel}",)


def test_pickle_that_would_run_code_is_refused_and_not_run(tmp_path: Path) -> None:
    sentinel, file = tmp_path / "sentinel", tmp_path / "step-3.pt"
    harm = {"format": "excb-run", "version": 1, "model": RunsCode(sentinel)}
    with file.open("wb") as stream:
        torch.save(harm, stream)
    with pytest.raises(UserError, match="could run code"):
        run_checkpoint.read_run_checkpoint(file)
    torch.save(harm, file)  # named by its path, the archive's folder has another name
    with pytest.raises(UserError):
        run_checkpoint.read_run_checkpoint(file)
    file.write_bytes(pickle.dumps(harm))  # torch's format of old
    with pytest.raises(UserError):
        run_checkpoint.read_run_checkpoint(file)
    assert not sentinel.exists()
    torch.load(io.BytesIO(_saved(harm)), weights_only=False)
    assert sentinel.exists()  # it would have


def _saved(contents: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(contents, stream)
    return stream.getvalue()


def _zip(**files: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return stream.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"a text file\n",
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        _zip(document="words " * 100),
        _zip(),
        pickle.dumps({"format": "excb-run", "version": 1}),
        _saved({"model": {"weight": torch.ones(2)}}),
        _saved({"format": "other", "version": 1}),
        _saved([1, 2, 3]),
        _saved(torch.ones(3)),
    ],
    ids=["text", "image", "foreign zip", "empty zip", "old pickle", "bare weights", "other format", "list", "tensor"],
)
def test_foreign_file_is_refused_as_what_it_is(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "model.pt"
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"not a (run )?checkpoint of excb") as caught:
        run_checkpoint.read_run_checkpoint(file)
    assert str(file) in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "step-3.pt", tmp_path):
        with pytest.raises(UserError, match="no checkpoint file"):
            run_checkpoint.read_run_checkpoint(path)


def test_checkpoint_of_a_newer_version_says_to_upgrade(tmp_path: Path) -> None:
    file = written(tmp_path / "step-3.pt", version=2)
    with pytest.raises(UserError, match="newer excb: upgrade"):
        run_checkpoint.read_run_checkpoint(file)


# ---------------------------------------------------------------------------------------------------------------------
# The newest one of a run
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (2, 10, 9):
        written(tmp_path / "checkpoints" / f"step-{step}.pt", step=step)
    return tmp_path


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def test_checkpoints_are_ordered_by_number(run: Path) -> None:
    (run / "checkpoints" / ".step-11.pt.tmp").touch()
    (run / "checkpoints" / "step-12.damaged").touch()
    (run / "checkpoints" / "step-best.pt").touch()
    assert [file.name for file in run_checkpoint.in_run(run)] == ["step-10.pt", "step-9.pt", "step-2.pt"]
    assert [run_checkpoint.step_of(file) for file in run_checkpoint.in_run(run)] == [10, 9, 2]


def test_the_newest_one_is_read_without_a_word(run: Path) -> None:
    words: list[str] = []
    found = run_checkpoint.read_newest(run, words.append)
    assert found is not None
    assert (found[0], found[1]["step"], words) == (run / "checkpoints" / "step-10.pt", 10, [])


def test_damaged_ones_are_named_and_passed_over(run: Path) -> None:
    newest, second, _ = run_checkpoint.in_run(run)
    truncate(newest)
    second.write_bytes(b"")
    words: list[str] = []
    found = run_checkpoint.read_newest(run, words.append)
    assert found is not None
    assert found[1]["step"] == 2
    assert len(words) == 2
    for file, word in zip((newest, second), words, strict=True):
        assert str(file) in word
        assert "damaged" in word


@pytest.mark.parametrize("made", ["folder", "pipe", "link", "other step", "no step"])
def test_what_only_has_a_checkpoints_name_is_named_and_passed_over(run: Path, made: str) -> None:
    place = run / "checkpoints" / "step-999.pt"
    match made:
        case "folder":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
        case "link":
            place.symlink_to("nothing")
        case "other step":
            shutil.copy(run / "checkpoints" / "step-10.pt", place)
        case "no step":
            run_checkpoint.write_run_checkpoint({"model": {}}, place)
    words: list[str] = []
    found = run_checkpoint.read_newest(run, words.append)
    assert found is not None
    assert (found[0].name, found[1]["step"]) == ("step-10.pt", 10)
    assert len(words) == 1
    assert str(place) in words[0]


def test_all_damaged_is_an_error(run: Path) -> None:
    for file in run_checkpoint.in_run(run):
        truncate(file)
    words: list[str] = []
    with pytest.raises(UserError, match=r"every checkpoint in .* is damaged"):
        run_checkpoint.read_newest(run, words.append)
    assert len(words) == 3


def test_intact_one_that_cannot_be_used_is_not_passed_over(run: Path) -> None:
    """Going on from an older one would overwrite what a newer version of this package wrote."""
    written(run / "checkpoints" / "step-10.pt", version=2)
    words: list[str] = []
    with pytest.raises(UserError, match="newer excb"):
        run_checkpoint.read_newest(run, words.append)
    assert words == []


def test_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert run_checkpoint.read_newest(tmp_path, print) is None
    (tmp_path / "checkpoints").mkdir()
    assert run_checkpoint.read_newest(tmp_path, print) is None


@pytest.mark.parametrize("version", [None, "1", [1]])
def test_a_version_that_is_no_number(tmp_path: Path, version: Any) -> None:
    contents = {"format": "excb-run"} | ({} if version is None else {"version": version})
    (tmp_path / "step-1.pt").write_bytes(saved(contents))
    with pytest.raises(DamagedFileError, match="version"):
        run_checkpoint.read_run_checkpoint(tmp_path / "step-1.pt")


@pytest.mark.parametrize("lacking", ["model", "architecture", "preprocessing"])
def test_a_file_that_lacks_a_part_is_no_whole_checkpoint(tmp_path: Path, lacking: str) -> None:
    contents = {
        "model": {"teacher.backbone.a": torch.ones(1)},
        "architecture": {"name": "resnet18", "options": {}},
        "preprocessing": {},
    }
    assert reading.read(written(tmp_path / "step-1.pt", **contents)).tensors.keys() == {"a"}
    with pytest.raises(UserError, match=r"is not a whole checkpoint of a run .*: use another one"):
        reading.read(written(tmp_path / "step-2.pt", **contents | {lacking: None}))


def test_tensors_that_would_fill_any_memory_are_refused(tmp_path: Path) -> None:
    """A view with strides of zero takes four bytes in the file, and terabytes once it is copied."""
    (tmp_path / "step-1.pt").write_bytes(
        saved(CONTENTS | {"format": "excb-run", "version": 1, "a": torch.zeros(1).expand(10**12)})
    )
    with pytest.raises(run_checkpoint.ForeignFileError, match=r"tensors of 4,000\.0 GB in 0\.000 GB"):
        run_checkpoint.read_run_checkpoint(tmp_path / "step-1.pt")
    with pytest.raises(UserError, match="repeat themselves: refused"):
        untrusted.read_untrusted(tmp_path / "step-1.pt")


def test_networks_that_share_their_tensors_are_read(tmp_path: Path) -> None:
    weight = torch.ones(3_000_000)
    file = written(tmp_path / "step-1.pt", student={"a": weight}, teacher={"a": weight, "view": weight[::2]})
    assert run_checkpoint.read_run_checkpoint(file)["teacher"]["view"].sum() == 1_500_000


def saved(contents: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(contents, stream)
    return stream.getvalue()
