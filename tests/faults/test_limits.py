"""Limits of the system while an evaluation runs: a full disk, few open files, little memory; each is one line."""

import os
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from excb.errors import USER_ERROR
from excb.transfer.cli import main as evaluate
from excb.zoo.__main__ import main as zoo
from tests.attacks.forks import fork
from tests.pretrain.small_runs import write_images
from tests.run_files import tiny_recipe, write_run

# OpenMP's threads are not in a fork, which would wait for them.
pytestmark = pytest.mark.usefixtures("one_thread")

Command = Callable[[Path, Path], list[str]]


def on(name: str, out: str) -> Command:
    machine = ["--device", "cpu", "--workers", "0", "--quiet", "--no-cache"]
    return lambda place, folder: [
        *(name, "--ckpt", str(place / "run"), "--data", str(place / "images"), *machine, "--out", str(folder / out))
    ]


COMMANDS: dict[str, Command] = {
    "result": on("knn", "a.json"),
    **{ending: on("embed", f"a.{ending}") for ending in ("npz", "parquet", "safetensors")},
    "features": on("features", "a.npz"),
    "export": lambda place, folder: ["export", str(place / "run"), "--out", str(folder / "x")],
}

QUICK = ("result", "parquet", "export")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a tiny network, and images."""
    place = tmp_path_factory.mktemp("limits")
    write_run(place / "run", 10, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    for split in ("train", "test"):
        write_images(place / "images" / split, each=2)
    return place


def limited(words: list[str], limit: int, most: int) -> int:
    resource.setrlimit(limit, (most, resource.getrlimit(limit)[1]))
    return (zoo if words[0] == "export" else evaluate)(words)


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS if name not in QUICK)]
)
def test_a_full_disk_is_one_line_and_leaves_nothing(name: str, place: Path, tmp_path: Path) -> None:
    """The kernel takes the first bytes of every file and no more, as a disk that becomes full does."""
    words = COMMANDS[name](place, tmp_path / "out")
    ended = fork(partial(limited, words, resource.RLIMIT_FSIZE, 500), tmp_path / "log", patience=60)
    assert ended.code == USER_ERROR, ended.log
    assert "Traceback" not in ended.log
    assert ended.log.splitlines()[-1].split(": ", 2)[1] == "error"
    left = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert [file for file in left if ".unfinished/" not in str(file)] == []  # from which the same command goes on


def test_few_open_files_are_one_line(place: Path, tmp_path: Path) -> None:
    words = COMMANDS["result"](place, tmp_path / "out")
    ended = fork(partial(limited, words, resource.RLIMIT_NOFILE, 3), tmp_path / "log", patience=60)
    assert ended.code == USER_ERROR, ended.log
    assert "Traceback" not in ended.log
    assert "ulimit -n" in ended.log.splitlines()[-1]


@pytest.mark.parametrize("spare", [2**24, *(pytest.param(each, marks=pytest.mark.slow) for each in (0, 2**20))])
def test_little_memory_is_one_line(spare: int, place: Path, tmp_path: Path) -> None:
    words = COMMANDS["result"](place, tmp_path / "out")
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    ended = fork(partial(limited, words, resource.RLIMIT_AS, mapped + spare), tmp_path / "log", patience=60)
    assert ended.code in (0, USER_ERROR), ended.log
    assert "Traceback" not in ended.log
    assert ended.code == 0 or "memory" in ended.log.splitlines()[-1]
