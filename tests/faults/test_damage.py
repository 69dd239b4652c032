"""Checkpoints that are cut, altered or emptied on the disk: named, passed over, and the run ends as ever."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from excb.checkpoint import run_checkpoint
from tests.faults.runs import assert_equal, run


def cut(contents: bytes, chance: random.Random) -> bytes:
    return contents[: chance.randrange(1, len(contents))]


def flip(contents: bytes, chance: random.Random) -> bytes:
    """One bit in each of a few places."""
    changed = bytearray(contents)
    for _ in range(5):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def zeros(contents: bytes, chance: random.Random) -> bytes:
    """The end of the file was never written."""
    start = chance.randrange(len(contents))
    return contents[:start] + bytes(len(contents) - start)


def empty(_contents: bytes, _chance: random.Random) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [cut, flip, zeros, empty])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_the_checkpoint_before_is_used(
    images: Path, undisturbed: Path, tmp_path: Path, damage: Callable[[bytes, random.Random], bytes], seed: int
) -> None:
    out = shutil.copytree(undisturbed, tmp_path / "run")
    newest, before, *_ = run_checkpoint.in_run(out)
    contents = newest.read_bytes()
    newest.write_bytes(damage(contents, random.Random(seed)))
    ended = run(images, out)
    assert ended.code == 0, ended.said
    # Where all that changed is what no reader looks at, the checkpoint is the same one.
    if "the run is finished" not in ended.said or damage is not flip:
        assert f"{newest} is damaged" in ended.said
        assert f"resuming from step {run_checkpoint.step_of(before)}" in ended.said
        assert (newest.with_suffix(".damaged")).is_file()
    assert_equal(undisturbed, out)


def test_all_of_them_damaged(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = shutil.copytree(undisturbed, tmp_path / "run")
    for file in run_checkpoint.in_run(out):
        file.write_bytes(file.read_bytes()[:-1000])
    left = {file: file.read_bytes() for file in (out / "checkpoints").iterdir()}
    ended = run(images, out)
    assert ended.code == 2
    assert f"every checkpoint in {out / 'checkpoints'} is damaged" in ended.error
    assert {file: file.read_bytes() for file in (out / "checkpoints").iterdir()} == left
