"""Tests of bundles: what comes out is what went in, and an archive that is anything else puts nothing anywhere."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import excb
from excb.checkpoint import exported
from excb.console import Reporter
from excb.errors import UserError
from excb.hub.catalogue import Checkpoint
from excb.networks.architecture import Architecture
from excb.networks.backbone import feature_width
from excb.networks.preprocessing import Preprocessing
from excb.zoo.bundle import bundle, unbundle
from tests.run_files import TINY_RESNET, features, pictures

ARCHITECTURE = Architecture("timm:resnet10t", TINY_RESNET["options"])
PREPROCESSING = Preprocessing(64, 64)


@pytest.fixture(autouse=True)
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where checkpoints lie; `elsewhere` is the other machine's."""
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "zoo"))
    return tmp_path / "zoo"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    def move() -> Path:
        monkeypatch.setenv("EXCB_HOME", str(tmp_path / "elsewhere"))
        return tmp_path / "elsewhere"

    return move


def store(zoo: Path, name: str, *, seed: int = 0, **row: Any) -> Path:
    """A checkpoint with a file of every kind."""
    torch.manual_seed(seed)
    network = ARCHITECTURE.build()
    values = {"source": "own run"} | row
    checkpoint = Checkpoint(name=name, method="ExCB", architecture=ARCHITECTURE, preprocessing=PREPROCESSING, **values)
    folder = exported.write_exported(
        zoo / name,
        tensors=network.state_dict(),
        heads={"sizes": torch.rand(4)},
        architecture=ARCHITECTURE,
        preprocessing=PREPROCESSING,
        width=feature_width(network),
        facts={"checkpoint": checkpoint.to_dict()},
    )
    (folder / "README.md").write_text(f"# {name}\n", encoding="utf-8")
    (folder / "results").mkdir()
    (folder / "results" / "knn.json").write_text("{}", encoding="utf-8")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------------------------------------------------------------
# There and back
# ---------------------------------------------------------------------------------------------------------------------


def test_checkpoints_arrive_as_they_were(zoo: Path, elsewhere: Callable[[], Path], tmp_path: Path) -> None:
    stored = {name: store(zoo, name, seed=seed) for seed, name in enumerate(("one", "two", "three"))}
    (stored["one"] / ".hidden").write_text("no part of it")
    expected = {name: contents(folder) for name, folder in stored.items()}
    del expected["one"][".hidden"], expected["three"]
    before = features(excb.load("two"), pictures())
    archive = bundle(["one", "two"], tmp_path / "new" / "zoo.tar", Reporter(quiet=True))
    there = elsewhere()
    assert unbundle(archive, Reporter(quiet=True)) == ["one", "two"]
    assert {folder.name: contents(folder) for folder in there.iterdir()} == expected
    assert torch.equal(features(excb.load("two"), pictures()), before)
    assert len(expected["one"]) == 5


def test_archive_is_plain_and_says_what_it_holds(zoo: Path, tmp_path: Path) -> None:
    folder = store(zoo, "one")
    archive = bundle(["one"], tmp_path / "zoo.tar", Reporter(quiet=True))
    with tarfile.open(archive, "r:") as tar:  # ":" takes no compressed file
        members = {member.name: member for member in tar}
        index = tar.extractfile("index.json")
        assert index is not None
        told = json.loads(index.read())["checkpoints"]["one"]
    assert next(iter(members)) == "index.json"
    assert {name.removeprefix("one/") for name in members} - {"index.json"} == set(contents(folder)) == set(told)
    for name, value in contents(folder).items():
        assert told[name] == {"sha256": hashlib.sha256(value).hexdigest(), "size": len(value)}
    assert {(member.uid, member.mtime, member.uname) for member in members.values()} == {(0, 0, "")}


def test_equal_checkpoints_make_equal_bundles_and_the_older_one_is_replaced(zoo: Path, tmp_path: Path) -> None:
    store(zoo, "one")
    out = tmp_path / "zoo.tar"
    out.write_bytes(b"older")
    first = bundle(["one"], out, Reporter(quiet=True)).read_bytes()
    assert bundle(["one", "one"], tmp_path / "again.tar", Reporter(quiet=True)).read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.tar", "zoo", "zoo.tar"]


def test_what_is_here_already_stays_and_another_one_is_not_replaced(
    zoo: Path, elsewhere: Callable[[], Path], tmp_path: Path
) -> None:
    store(zoo, "one")
    store(zoo, "two")
    archive = bundle(["one", "two"], tmp_path / "zoo.tar", Reporter(quiet=True))
    there = elsewhere()
    store(there, "one")
    moment = (there / "one" / "model.safetensors").stat().st_mtime_ns
    assert unbundle(archive, Reporter(quiet=True)) == ["one", "two"]
    assert (there / "one" / "model.safetensors").stat().st_mtime_ns == moment
    (there / "one" / "README.md").write_text("mine")
    exported.read(there / "two")
    (there / "two").rename(there / "three")
    with pytest.raises(UserError, match=r"one holds other files than the bundle's one: move it away first"):
        unbundle(archive, Reporter(quiet=True))
    assert sorted(path.name for path in there.iterdir()) == ["one", "three"]


def test_licence_is_told_once_where_it_forbids_passing_on(
    zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(zoo, "mine")
    store(zoo, "free", source="https://a.example", licence="MIT", redistributable=True)
    store(zoo, "closed", source="https://b.example", licence="CC BY-NC 4.0")
    store(zoo, "silent", source="https://c.example")
    bundle(["mine", "free"], tmp_path / "a.tar", Reporter())
    assert capsys.readouterr().err == ""
    bundle(["mine", "free", "closed", "silent"], tmp_path / "b.tar", Reporter())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("closed (CC BY-NC 4.0), silent (no licence stated)")


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be bundled
# ---------------------------------------------------------------------------------------------------------------------


def test_names_that_are_none(zoo: Path, tmp_path: Path) -> None:
    folder = store(zoo, "one")
    for names, message in (
        (["on"], "did you mean 'one'"),
        ([str(folder)], "is not in the catalogue"),
        ([], "name the"),
    ):
        with pytest.raises(UserError, match=message):
            bundle(names, tmp_path / "zoo.tar", Reporter(quiet=True))
    assert not (tmp_path / "zoo.tar").exists()


def test_damaged_weights_are_not_bundled(zoo: Path, tmp_path: Path) -> None:
    weights = store(zoo, "one") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="sha256"):
        bundle(["one"], tmp_path / "zoo.tar", Reporter(quiet=True))
    assert not (tmp_path / "zoo.tar").exists()


def test_archive_that_cannot_be_written(zoo: Path, tmp_path: Path) -> None:
    store(zoo, "one")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        bundle(["one"], tmp_path / "file" / "zoo.tar", Reporter(quiet=True))


# ---------------------------------------------------------------------------------------------------------------------
# Archives from elsewhere
# ---------------------------------------------------------------------------------------------------------------------

Member = tuple[tarfile.TarInfo, bytes]


def plain(name: str, content: bytes = b"x") -> Member:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info, content


def extended(name: str, content: bytes, **headers: str) -> Member:
    """A file of which an extended header says something else than its own."""
    info, _ = plain(name, content)
    info.pax_headers = {key.replace("_", "."): value for key, value in headers.items()}
    return info, content


def special(name: str, kind: bytes, target: str = "") -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[Member]:
    """Of a bundle of "one" and "two"."""
    base = tmp_path_factory.mktemp("bundles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXCB_HOME", str(base / "zoo"))
        for seed, name in enumerate(("one", "two")):
            store(base / "zoo", name, seed=seed)
        archive = bundle(["one", "two"], base / "good.tar", Reporter(quiet=True))
    with tarfile.open(archive) as tar:
        found = []
        for member in tar:
            stream = tar.extractfile(member)
            assert stream is not None
            found.append((member, stream.read()))
    return found


@pytest.fixture
def good(members: list[Member], elsewhere: Callable[[], Path]) -> list[Member]:
    """The same, on a machine that has no checkpoints yet."""
    elsewhere()
    return members


def write(members: list[Member], file: Path) -> Path:
    with tarfile.open(file, "w") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return file


def index_of(members: list[Member]) -> Any:
    return json.loads(members[0][1])


def with_index(members: list[Member], index: Any) -> list[Member]:
    return [plain("index.json", json.dumps(index).encode()), *members[1:]]


def listed(members: list[Member], name: str, *more: Member) -> list[Member]:
    """The members and more of them, of which the index tells, as if they were files of "one"."""
    index = index_of(members)
    for info, content in more:
        stamp = {"sha256": hashlib.sha256(content).hexdigest(), "size": info.size}
        index["checkpoints"][name][info.name.removeprefix(f"{name}/")] = stamp
    return [*with_index(members, index), *more]


def changed(members: list[Member], name: str, content: bytes, **headers: str) -> list[Member]:
    return [extended(name, content, **headers) if info.name == name else (info, old) for info, old in members]


HOSTILE: dict[str, Callable[[list[Member]], list[Member]]] = {
    "absolute name": lambda good: listed(good, "one", plain("/etc/passwd")),
    "name that climbs": lambda good: listed(good, "one", plain("one/../../escaped")),
    "name that climbs, unlisted": lambda good: [*good, plain("../escaped")],
    "folder in the place of a file": lambda good: listed(good, "one", special("one/results/a.json", tarfile.DIRTYPE)),
    "symbolic link": lambda good: listed(good, "one", special("one/results/a.json", tarfile.SYMTYPE, "/etc/passwd")),
    "hard link": lambda good: listed(good, "one", special("one/results/a.json", tarfile.LNKTYPE, "one/README.md")),
    "device": lambda good: listed(good, "one", special("one/results/a.json", tarfile.CHRTYPE)),
    "pipe": lambda good: listed(good, "one", special("one/results/a.json", tarfile.FIFOTYPE)),
    "file with holes": lambda good: listed(good, "one", special("one/results/a.json", tarfile.GNUTYPE_SPARSE)),
    "file with holes, by an extended header": lambda good: changed(
        good, "one/README.md", b"# one\n", GNU_sparse_major="1", GNU_sparse_minor="0", GNU_sparse_realsize="6"
    ),
    "name by an extended header": lambda good: changed(good, "one/README.md", b"# one\n", path="../../escaped"),
    "size by an extended header": lambda good: changed(good, "one/README.md", b"# one\n", size="-1000"),
    "member twice": lambda good: [*good, next(each for each in good if each[0].name == "two/README.md")],
    "member of which the index does not tell": lambda good: [*good, plain("two/results/more.json")],
    "file that no checkpoint has": lambda good: listed(good, "two", plain("two/setup.py")),
    "hidden file": lambda good: listed(good, "two", plain("two/results/.a.json")),
    "member missing": lambda good: [each for each in good if each[0].name != "two/config.json"],
    "index not first": lambda good: [*good[1:], good[0]],
    "no index": lambda good: good[1:],
    "index that is no JSON": lambda good: [plain("index.json", b"{"), *good[1:]],
    "index that nests too deep": lambda good: [plain("index.json", b"[" * 100_000), *good[1:]],
    "index of another kind": lambda good: with_index(good, ["one"]),
    "index of a later version": lambda good: with_index(good, index_of(good) | {"version": 2}),
    "name of a checkpoint that climbs": lambda good: with_index(good, index_of(good) | {"checkpoints": {"..": {}}}),
    "name of what the zoo keeps": lambda good: with_index(good, index_of(good) | {"checkpoints": {"downloads": {}}}),
    "wrong content": lambda good: changed(good, "two/README.md", b"# twO\n"),
    "wrong size": lambda good: changed(good, "two/README.md", b"# two\n\n"),
    "checkpoint without weights": lambda good: with_index(
        [each for each in good if each[0].name != "two/model.safetensors"],
        index_of(good)
        | {
            "checkpoints": index_of(good)["checkpoints"]
            | {
                "two": {
                    name: stamp
                    for name, stamp in index_of(good)["checkpoints"]["two"].items()
                    if name != "model.safetensors"
                }
            }
        },
    ),
}


@pytest.mark.parametrize("how", HOSTILE.values(), ids=HOSTILE)
def test_hostile_archive_puts_nothing_anywhere(
    good: list[Member], how: Callable[[list[Member]], list[Member]], tmp_path: Path
) -> None:
    archive = write(how(good), tmp_path / "bad.tar")
    before = contents(tmp_path)
    with pytest.raises(UserError) as error:
        unbundle(archive, Reporter(quiet=True))
    assert "bad.tar" in str(error.value)
    assert "\n" not in str(error.value)
    assert contents(tmp_path) == before
    assert not any((tmp_path / "elsewhere").glob("*"))


def test_the_good_archive_is_good(good: list[Member], tmp_path: Path) -> None:
    """What the hostile ones were made of; else they could be refused for anything."""
    assert unbundle(write(good, tmp_path / "same.tar"), Reporter(quiet=True)) == ["one", "two"]


def test_weights_that_are_not_those_of_their_config(good: list[Member], tmp_path: Path) -> None:
    weights = next(content for info, content in good if info.name == "one/model.safetensors")
    index = index_of(good)
    stamps = index["checkpoints"]
    stamps["two"]["model.safetensors"] = stamps["one"]["model.safetensors"]
    members = changed(with_index(good, index), "two/model.safetensors", weights)
    with pytest.raises(UserError, match=r"two in .* is not a checkpoint: .*sha256"):
        unbundle(write(members, tmp_path / "bad.tar"), Reporter(quiet=True))
    assert not any((tmp_path / "elsewhere").glob("*"))


def test_truncated_or_altered_archive(good: list[Member], tmp_path: Path) -> None:
    whole = write(good, tmp_path / "same.tar").read_bytes()
    end = whole.rindex(b"two/results/knn.json")
    cuts = [whole[:at] for at in range(0, end, end // 12)]
    altered = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, 512, 37)]  # of the first header
    for content in [*cuts, b"<html>", *altered]:
        (tmp_path / "bad.tar").write_bytes(content)
        with pytest.raises(UserError, match=r"bad\.tar"):
            unbundle(tmp_path / "bad.tar", Reporter(quiet=True))
        assert not any((tmp_path / "elsewhere").glob("*"))


def test_compressed_and_missing_archives(good: list[Member], tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w:gz") as tar:
        for info, content in good:
            tar.addfile(info, io.BytesIO(content))
    for name, message in (("bad.tar", "is not a bundle"), ("none.tar", "cannot read the bundle")):
        with pytest.raises(UserError, match=message):
            unbundle(tmp_path / name, Reporter(quiet=True))


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        yield


def test_full_disk_leaves_nothing(good: list[Member], tmp_path: Path, full_disk: None) -> None:
    archive = write(good, tmp_path / "same.tar")
    with pytest.raises(UserError, match=r"cannot unpack .*No space left"):
        unbundle(archive, Reporter(quiet=True))
    assert not any((tmp_path / "elsewhere").glob("*"))
