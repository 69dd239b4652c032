"""Checkpoints that are cut, altered or emptied on the disk: named, passed over, and the run ends as ever."""

import os
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


@pytest.mark.parametrize("made", ["folder", "pipe", "link", "of another step"])
def test_what_only_has_a_checkpoints_name_stops_no_run(
    images: Path, undisturbed: Path, tmp_path: Path, made: str
) -> None:
    """In the place of the last step, of which the run will write a file."""
    out = shutil.copytree(undisturbed, tmp_path / "run")
    newest, before, *_ = run_checkpoint.in_run(out)
    newest.unlink()
    match made:
        case "folder":
            (newest / "inner").mkdir(parents=True)
        case "pipe":
            os.mkfifo(newest)
        case "link":
            newest.symlink_to(out / "nothing")
        case "of another step":
            shutil.copy(before, newest)
    ended = run(images, out)
    assert ended.code == 0, ended.said
    assert f"warning: {newest} " in ended.said.replace("\n", " ")
    assert f"resuming from step {run_checkpoint.step_of(before)}" in ended.said
    assert os.path.lexists(newest.with_suffix(".damaged"))
    assert_equal(undisturbed, out)


def test_a_checkpoint_that_says_more_steps_than_it_holds_does_not_send_a_finished_run_back(
    images: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(undisturbed, tmp_path / "run")
    newest, before, *_ = run_checkpoint.in_run(out)
    shutil.copy(before, before.with_name("step-999.pt"))
    for _ in range(2):
        ended = run(images, out)
        assert (ended.code, "the run is finished" in ended.said) == (0, True), ended.said
    assert run_checkpoint.in_run(out)[0] == newest


SHAPES: dict[str, bytes] = {
    "no data": b'{"recipe": {}, "data": {}}',
    "data is null": b'{"recipe": {}, "data": null}',
    "null": b"null",
    "a list": b"[]",
    "recipe is a list": b'{"recipe": [1], "data": {"images": 1, "root": "", "fingerprint": ""}}',
    "no fingerprint": b'{"recipe": {}, "data": {"images": 27, "root": "x"}}',
    "fingerprint is null": b'{"recipe": {}, "data": {"images": 27, "root": "x", "fingerprint": null}}',
    "not UTF-8": b'{"recipe": "\xff\xfe"}',
    "empty": b"",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_recipe_of_wrong_shape_is_one_line_and_nothing_is_touched(
    images: Path, undisturbed: Path, tmp_path: Path, shape: str
) -> None:
    out = shutil.copytree(undisturbed, tmp_path / "run")
    (out / "recipe.json").write_bytes(SHAPES[shape])
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    ended = run(images, out)
    assert ended.code == 2
    assert f"{out}/recipe.json is damaged: move the folder away" in ended.error
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    "shape", ["no model", "model is null", "no statistics", "an odd progress", "another optimizer"]
)
def test_a_checkpoint_of_wrong_shape_is_one_line(images: Path, undisturbed: Path, tmp_path: Path, shape: str) -> None:
    """Whole as a file, but not what a run writes."""
    out = shutil.copytree(undisturbed, tmp_path / "run")
    newest = run_checkpoint.in_run(out)[0]
    contents = run_checkpoint.read_run_checkpoint(newest)
    match shape:
        case "no model":
            del contents["model"]
        case "model is null":
            contents["model"] = None
        case "no statistics":
            contents["statistics"] = {}
        case "an odd progress":
            contents["broken"] = {"colour": "red"}
        case "another optimizer":
            contents["optimizer"] = {}
    run_checkpoint.write_run_checkpoint(contents, newest)
    ended = run(images, out)
    assert ended.code == 2
    assert "is not one of this run" in ended.error


def test_all_of_them_damaged(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = shutil.copytree(undisturbed, tmp_path / "run")
    for file in run_checkpoint.in_run(out):
        file.write_bytes(file.read_bytes()[:-1000])
    left = {file: file.read_bytes() for file in (out / "checkpoints").iterdir()}
    ended = run(images, out)
    assert ended.code == 2
    assert f"every checkpoint in {out / 'checkpoints'} is damaged" in ended.error
    assert {file: file.read_bytes() for file in (out / "checkpoints").iterdir()} == left
