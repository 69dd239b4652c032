"""Options that have no use beside others are refused, before any image is read: nobody waits for what has no effect."""

from pathlib import Path

import pytest

from excb.transfer.cli import main
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import CLASSES, write_folder

IDLE: dict[str, tuple[str, ...]] = {
    "--episodes are of shots": ("sets", "--ckpt", "{run}", "--set", "x={data}", "--shots", "--episodes", "5"),
    "--own-preprocessing is of several checkpoints": (
        *("sets", "--ckpt", "{run}", "{run}", "--set", "x={data}", "--own-preprocessing", "--resize", "36"),
        *("--crop", "32"),
    ),
    "--k is of queries": ("search", "--ckpt", "{run}", "--data", "{data}", "--near-duplicates", "--k", "3"),
    "--control is of calibration": (
        *("overlap", "--train", "{data}/train", "--test", "{data}/test", "--bits", "3", "--calibrate", "0"),
        *("--control", "classes"),
    ),
    "--every is the time between two looks": ("watch", "{run}", "--data", "{data}", "--every", "5s", "--once"),
    "--schedule is of detection, which needs --coco": (
        "all",
        "--ckpt",
        "{run}",
        "--data",
        "{data}",
        "--schedule",
        "2x",
    ),
    "--linear is of the step linear, which --only leaves out": (
        *("all", "--ckpt", "{run}", "--data", "{data}", "--only", "knn", "--linear", "fast"),
    ),
    "--seeds is of the step semisup_1 or semisup_10, which --only leaves out": (
        *("all", "--ckpt", "{run}", "--data", "{data}", "--only", "knn", "--seeds", "0", "1"),
    ),
    "--pixels is of no step that --only names (semisup_10)": (
        *("all", "--ckpt", "{run}", "--data", "{data}", "--only", "semisup_10", "--pixels"),
    ),
    "--own-preprocessing is of several": ("all", "--ckpt", "{run}", "--data", "{data}", "--own-preprocessing"),
    "--data-root is of torchvision:NAME": ("knn", "--ckpt", "{run}", "--data", "{data}", "--data-root", "{data}"),
    "--data-root is of torchvision": ("embed", "--ckpt", "{run}", "--data", "{data}", "--data-root", "{data}"),
    "--data-root is of": ("clusters", "--ckpt", "{run}", "--data", "{data}", "--k", "2", "--data-root", "{data}"),
    "--data-root": ("overlap", "--train", "{data}/train", "--test", "{data}/test", "--data-root", "{data}"),
    "has no use beside both --train and --test": (
        *("retrieval", "--ckpt", "{run}", "--data", "{data}", "--train", "{data}/train", "--test", "{data}/test"),
    ),
    "--cache keeps features, and --no-cache none": (
        *("knn", "--ckpt", "{run}", "--data", "{data}", "--cache", "{data}/c", "--no-cache"),
    ),
    "--crop has no effect on vectors of": ("map", "--embeddings", "{data}/a.npz", "--crop", "32"),
    "--out is of the leaderboard, and --check makes none": ("leaderboard", "{data}", "--check", "--out", "{data}/b"),
    "--claims is of the leaderboard, and --submit makes none": (
        *("leaderboard", "{data}", "--submit", "{data}/b", "--claims", "{data}/c.toml"),
    ),
    "--submit checks what it writes": ("leaderboard", "{data}", "--check", "--submit", "{data}/b"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("idle")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_folder(place / "data" / "train", each=3, classes=CLASSES, seed=1)
    write_folder(place / "data" / "test", each=1, classes=CLASSES, seed=2)
    return place


@pytest.mark.parametrize("said", IDLE)
def test_an_option_without_a_use_is_refused(place: Path, capsys: pytest.CaptureFixture[str], said: str) -> None:
    line = [word.format(run=place / "run", data=place / "data") for word in IDLE[said]]
    before = sorted(place.rglob("*"))
    writes = () if line[0] in ("leaderboard", "watch") else ("--dry-run",)
    assert main([*line, *writes]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert sorted(place.rglob("*")) == before


def test_a_step_that_no_step_is_called_is_named_first(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--ckpt", str(place / "run"), "--data", str(place / "data"), "--only", "liner", "--linear", "fast"]
    assert main(["all", *words, "--dry-run"]) == 2
    assert "did you mean 'linear'? (there are knn, " in capsys.readouterr().err


def test_an_untrained_network_needs_no_untrained_one_beside_it(
    place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--ckpt", "untrained:resnet18", "--data", str(place / "data"), "--cache", str(tmp_path), "--k", "1"]
    assert main(["knn", *words, "--untrained", "--resize", "36", "--crop", "32", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "--untrained adds nothing: the network is untrained itself" in shown.err
    assert "once more" not in shown.out
