"""Pretraining on tar shards: the run on the same images as files to the last bit, also stopped and gone on with."""

import re
from pathlib import Path

import pytest
import torch

from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.errors import UserError
from excb.images.image_set import CodedImages
from excb.images.scanning import scan_folder
from excb.images.shards import open_shards
from excb.pretrain import loop
from excb.pretrain.__main__ import main
from excb.pretrain.overrides import apply, find_recipe
from tests.excb.images.shard_files import pack_folder, tar_of
from tests.pretrain.small_runs import OVERRIDES, stopped_before, write_images

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def shards(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_folder(folder, tmp_path_factory.mktemp("packed") / "shards", count=4)


def pretrain(images: CodedImages, out: Path, *overrides: str) -> int:
    recipe = apply(find_recipe("quickstart"), [*OVERRIDES, *overrides])
    return loop.run_training(recipe, images, out, Reporter(quiet=True), table=False)


def state(out: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(out)[0])["model"]
    return tensors


def assert_same(first: Path, second: Path) -> None:
    one, other = state(first), state(second)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    last = [run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(out)[0])["last"] for out in (first, second)]
    assert last[0] == last[1]


@pytest.mark.parametrize("options", [(), ("efficiency.decoder=pillow",), ("efficiency.scaled_decoding=true",)])
def test_shards_train_as_their_files_do(folder: Path, shards: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    pretrain(scan_folder(folder), tmp_path / "files", "optim.epochs=1", *options)
    pretrain(open_shards(str(shards)), tmp_path / "shards", "optim.epochs=1", *options)
    assert_same(tmp_path / "files", tmp_path / "shards")


def test_a_stopped_run_on_shards_ends_as_the_undisturbed_one_on_files(
    folder: Path, shards: Path, tmp_path: Path
) -> None:
    pretrain(scan_folder(folder), tmp_path / "files")
    with stopped_before(4):
        assert pretrain(open_shards(str(shards)), tmp_path / "shards", "efficiency.workers=2") == 143
    assert run_checkpoint.step_of(run_checkpoint.in_run(tmp_path / "shards")[0]) == 5
    assert pretrain(open_shards(f"{shards}/{{000..003}}.tar"), tmp_path / "shards") == 0
    assert_same(tmp_path / "files", tmp_path / "shards")


def test_a_run_does_not_go_on_with_other_shards(shards: Path, tmp_path: Path) -> None:
    pretrain(open_shards(str(shards)), tmp_path / "run", "optim.epochs=1")
    with pytest.raises(UserError, match=r"belongs to another run \(other images\)"):
        pretrain(open_shards(f"{shards}/00[0-2].tar"), tmp_path / "run", "optim.epochs=1")


def test_a_broken_member_is_replaced_and_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"{number:03}.png": file.read_bytes() for number, file in enumerate(sorted(folder.rglob("*.png")))}
    (tmp_path / "one.tar").write_bytes(tar_of(files | {"003.png": b"no picture"}))
    arguments = [*OVERRIDES, "optim.epochs=1", "--out", str(tmp_path / "run")]
    assert main(["quickstart", "--data", str(tmp_path / "one.tar"), *arguments]) == 0
    messages = capsys.readouterr().err
    assert "one.tar/003.png cannot be read (UnidentifiedImageError: cannot identify image file 'one.tar/" in messages
    assert "indexing 1 shard, once" in messages


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "{}/*.tar", "--list", "{}/list.txt"], "--list names files, and .* holds none"),
        (["--data", ""], "the place of the images is empty"),
        (["--data", "{}", "--out", ""], "the place to write to is empty"),
        (["--data", "{}/none-*.tar"], "no tar at .*none"),
    ],
)
def test_mistakes_are_one_line(
    shards: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quickstart", *(argument.format(shards) for argument in arguments)]) == 2
    messages = capsys.readouterr().err.splitlines()
    assert len(messages) == 1
    assert re.search(words, messages[0])
