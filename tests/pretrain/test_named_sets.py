"""Pretraining on data sets that are named: the run on the same images as files, on one rank and on several."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from excb.checkpoint import run_checkpoint
from excb.pretrain.__main__ import main
from excb.pretrain.run.sets import find_sets
from tests.excb.sources.mnist_files import write_mnist
from tests.forked import launch
from tests.pretrain.small_runs import OVERRIDES, assert_same

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")

NAMED = "torchvision:MNIST"
Splits = dict[str, tuple[np.ndarray, np.ndarray]]


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Splits:
    """MNIST's files with 20 training images; pixels and labels by split."""
    monkeypatch.setenv("EXCB_DATA", str(tmp_path))
    return write_mnist(tmp_path)


def command(data: object, out: Path, *more: str) -> list[str]:
    return ["quickstart", "--data", str(data), "--out", str(out), "--quiet", *OVERRIDES, "optim.epochs=1", *more]


def test_a_named_set_trains_as_its_files_do(mnist: Splits, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()  # one folder, where files are in the order of their numbers
    for number, image in enumerate(mnist["train"][0]):
        Image.fromarray(image).save(tmp_path / "files" / f"{number:05}.png")
    assert main(command(NAMED, tmp_path / "named")) == 0
    assert main(command(tmp_path / "files", tmp_path / "run")) == 0
    states = [run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(tmp_path / run)[0]) for run in ("named", "run")]
    assert_same(states[0]["model"], states[1]["model"])


def test_every_rank_opens_a_named_set(mnist: Splits, tmp_path: Path) -> None:
    assert launch("excb.pretrain", command(NAMED, tmp_path / "run", "optim.batch=10"), 2) == 0
    run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(tmp_path / "run")[0])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["doctor"], "20 images of torchvision:MNIST"),
        (["quickstart", "--dry-run", *OVERRIDES], "it can run"),
        (["plan", "quickstart", *OVERRIDES], "20"),
    ],
)
def test_what_is_asked_before_a_run(
    words: list[str], said: str, mnist: Splits, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*words, "--data", NAMED]) == 0
    assert said in capsys.readouterr().out


def test_its_test_images_are_held_out(mnist: Splits) -> None:
    sets = find_sets(NAMED)
    assert sets.judged_on == "4 held-out images"
    assert sets.train.labels is not None
    assert sets.train.labels.tolist() == mnist["train"][1].tolist()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "torchvision:MINST"], "no torchvision:MINST; did you mean 'MNIST'?"),
        (["--data", NAMED, "--list", "a.txt"], "--list names files, and torchvision:MNIST holds none"),
        (["--data", "multilabel:photos"], "no folder multilabel:photos"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quickstart", *words]) == 2
    assert said in capsys.readouterr().err
