"""`excb-eval sets` end to end: two sets and one that is missing, killed and resumed; its files; its references."""

import contextlib
import csv
import io
import json
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from excb.results.result import ResultRecord
from excb.transfer.cli import main
from tests import forked
from tests.run_files import write_run
from tests.transfer.labelled_images import CLASSES, write_folder
from tests.transfer.multilabel_images import write_lists

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    write_run(folder / "a", 3)
    write_run(folder / "b", 3, 5)
    write_folder(folder / "shapes" / "train", each=4, classes=CLASSES[:3])
    write_folder(folder / "shapes" / "test", each=3, classes=CLASSES[:3], seed=1)
    write_lists(folder / "lists")
    return folder


def command(place: Path, out: Path, *words: str, checkpoints: Sequence[str] = ("a", "b")) -> list[str]:
    own = ["--set", f"shapes={place / 'shapes'}", "--set", f"lists=multilabel:{place / 'lists'}"]
    usual = ["--data", str(place / "none"), "--workers", "0", "--device", "cpu", "--no-cache", "--out", str(out)]
    named = [str(place / name) for name in checkpoints]
    return ["sets", "cars", *own, "--ckpt", *named, "--shots", "1", "2", "--episodes", "5", "--k", "3", *usual, *words]


@pytest.fixture(scope="module")
def done(place: Path) -> tuple[Path, str]:
    """The folder of both checkpoints' results, to read or to copy, and what the command said."""
    out, said = place / "done", io.StringIO()
    with contextlib.redirect_stderr(said):
        assert main(command(place, out)) == 0
    return out, said.getvalue()


def test_two_sets_and_one_that_is_missing(done: tuple[Path, str]) -> None:
    out, said = done
    assert "cars: skipped, torchvision:StanfordCars is not in" in said
    assert "stanford_cars" in said
    whole = json.loads((out / "sets.json").read_text(encoding="utf-8"))
    assert set(whole["skipped"]) == {"cars"}
    assert whole["metrics"] == {"shapes": "top-1", "lists": "mAP"}
    heads = {each["head"]: each for each in whole["tables"]}
    assert list(heads) == ["logreg", "knn", "shot1", "shot2"]
    assert (heads["knn"]["sets"], heads["shot1"]["sets"]) == (["shapes", "lists"], ["shapes"])
    names = [row["name"] for row in heads["knn"]["rows"]]
    assert len(names) == 5  # two checkpoints of one architecture, that network untrained, pixels and the majority class
    assert [row["reference"] for row in heads["knn"]["rows"]] == [False, False, True, True, True]
    assert names[2].endswith(", untrained")
    assert names[3:] == ["raw pixels", "majority class"]
    for row in heads["knn"]["rows"]:
        values = [row["sets"][name]["percent"] for name in ("shapes", "lists")]
        assert row["mean"]["percent"] == pytest.approx(np.mean(values))
    rows = list(csv.DictReader((out / "sets.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["set"] for row in rows} == {"shapes", "lists", "mean"}
    assert "<h2>Skipped</h2>" in (out / "sets.html").read_text(encoding="utf-8")


def test_a_set_with_fewer_images_than_were_asked_for_says_so(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "uneven", tmp_path / "out"
    write_folder(data / "train", each=4, classes=CLASSES[:2])
    write_folder(data / "train", each=2, classes=CLASSES[2:3])
    write_folder(data / "test", each=2, classes=CLASSES[:3], seed=1)
    own = [
        "--set",
        f"uneven={data}",
        "--ckpt",
        str(place / "a"),
        "--out",
        str(out),
        "--workers",
        "0",
        "--device",
        "cpu",
    ]
    assert main(["sets", *own, "--no-cache", "--shots", "2", "3", "--episodes", "2", "--k", "11"]) == 0
    expected = [
        "k-NN: 10 train images vote, not 11",
        "3-shot: all train images of 1 of 3 classes, which have fewer",
    ]
    results = [json.loads(file.read_text()) for file in out.rglob("*.json")]
    notes = [result["notes"][:2] for result in results if result.get("protocol") == "sets"]
    assert notes == [expected] * 3  # the checkpoint, that network untrained, and raw pixels
    said = capsys.readouterr().err
    assert all(said.count(line) == 1 for line in expected)


def test_k_nn_is_that_of_the_protocol(place: Path, done: tuple[Path, str], tmp_path: Path) -> None:
    ckpt = ["--ckpt", str(place / "a"), "--workers", "0", "--device", "cpu", "--no-cache", "--quiet"]
    for name, data, figure in (
        ("shapes", str(place / "shapes"), "knn_top1_k3"),
        ("lists", f"multilabel:{place / 'lists'}", "knn_mAP_k3"),
    ):
        out = tmp_path / f"{name}.json"
        assert main(["knn", *ckpt, "--data", data, "--k", "3", "--out", str(out)]) == 0
        (own,) = done[0].glob(f"a*/{name}.json")
        assert ResultRecord.read(own).figures["knn"] == pytest.approx(ResultRecord.read(out).figures[figure], abs=1e-3)


def test_a_killed_run_is_resumed(place: Path, done: tuple[Path, str], tmp_path: Path) -> None:
    killer = (
        "import os, signal, sys\n"
        "import excb.transfer.sets.running as running\n"
        "from excb.transfer.cli import main\n"
        "inner, done = running.measure_set, []\n"
        "def measure(*args, **options):\n"
        "    if len(done) == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    done.append(0)\n"
        "    return inner(*args, **options)\n"
        "running.measure_set = measure\n"
        "main(sys.argv[1:])\n"
    )
    words = command(place, tmp_path / "killed", "--quiet")
    died = forked.run([sys.executable, "-c", killer, *words], check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "killed").rglob("*.npz")}
    assert len(kept) == 3
    assert not (tmp_path / "killed" / "sets.json").exists()
    assert main(words) == 0
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    for name in ("sets.json", "sets.csv", "sets.md"):
        assert (tmp_path / "killed" / name).read_text() == (done[0] / name).read_text()


def test_other_options_measure_anew_and_a_plan_does_nothing(
    place: Path, done: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(place, tmp_path, "--dry-run", "--json", checkpoints=["a"])) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert list(tmp_path.iterdir()) == []
    assert [[each["name"] for each in own] for own in plans.values()] == [["shapes", "lists", "cars"]] * 3
    shutil.copytree(done[0], tmp_path, dirs_exist_ok=True)
    files = sorted(file for file in tmp_path.rglob("shapes.npz") if not file.parent.name.startswith("b"))
    assert len(files) == 3
    before = [file.stat().st_mtime_ns for file in files]
    assert main([*command(place, tmp_path, "--quiet", checkpoints=["a"]), "--k", "2"]) == 0
    assert all(file.stat().st_mtime_ns > old for file, old in zip(files, before, strict=True))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--episodes", "0"], "must be at least 1"),
        (["--k", "0"], "must be at least 1"),
        (["--only", "cats"], "--only cats: no such set"),
    ],
)
def test_mistakes_are_one_line(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(command(place, tmp_path, *words)) == 2
    assert told in capsys.readouterr().err


def test_results_among_the_images_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(place, place / "shapes" / "train" / "out")) == 2
    assert "among the images" in capsys.readouterr().err
