"""Tests of `--extend`: a finished run goes on for more epochs, resumes bit-exact, and nothing else is taken for one."""

import json
import shutil
import signal
from pathlib import Path

import pytest
from PIL import Image

import excb
from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.errors import UserError
from excb.images.scanning import scan_folder
from excb.pretrain import loop
from excb.pretrain.__main__ import main
from excb.pretrain.train import changed_recipe
from tests.pretrain.small_runs import OVERRIDES, VALUES, assert_same, stopped_before

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")
EPOCHS = VALUES["optim"]["epochs"]


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def extend(run: Path, finished_run: Path, extend: int | None, **optim: object) -> excb.Run:
    values = VALUES | {"optim": VALUES["optim"] | optim}
    images = finished_run.parent / "images"
    return excb.train("quickstart", data=images, out=run, extend=extend, quiet=True, **values)


def exit_code(run: Path, finished_run: Path) -> int:
    """Extend a run by one epoch as the command does, and return its exit code."""
    recipe = changed_recipe("quickstart", **VALUES)
    images = scan_folder(finished_run.parent / "images")
    return loop.run_training(recipe, images, run, Reporter(quiet=True), table=False, extend=1)


def test_a_finished_run_goes_on(run: Path, finished_run: Path) -> None:
    before = excb.Run(finished_run).report
    after = extend(run, finished_run, 2).report
    assert before is not None
    assert after is not None
    assert after["steps"] * EPOCHS == before["steps"] * (EPOCHS + 2)
    stored = json.loads((run / "recipe.json").read_text())["recipe"]["optim"]
    assert (stored["epochs"], stored["restarts"]) == (EPOCHS + 2, [EPOCHS])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == list(range(1, EPOCHS + 3))
    # The same command finds it finished; a higher number goes on from there.
    checkpoints = run_checkpoint.in_run(run)
    again = extend(run, finished_run, 2).report
    assert again is not None
    assert again["steps"] == after["steps"]
    assert run_checkpoint.in_run(run) == checkpoints
    assert extend(run, finished_run, 3).finished
    assert json.loads((run / "recipe.json").read_text())["recipe"]["optim"]["restarts"] == [EPOCHS, EPOCHS + 2]


def test_images_that_changed_under_the_same_names_are_reported(
    run: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = Path(shutil.copytree(finished_run.parent / "images", tmp_path / "images"))
    file = next(images.rglob("*.png"))
    Image.new("RGB", (36, 36)).save(file)

    def extended(epochs: int) -> str:
        excb.train("quickstart", data=images, out=run, extend=epochs, **VALUES)
        return capsys.readouterr().err

    assert f"files of {images} have other sizes than when this run last started" in extended(1)
    assert "other sizes" not in extended(2)  # it was said
    file.unlink()
    with pytest.raises(UserError, match=r"use the 27 images .* \(now there are 26 in "):
        extended(3)


def test_a_run_that_had_these_epochs_from_the_beginning_stays_as_it_is(run: Path, finished_run: Path) -> None:
    before = (run / "recipe.json").read_bytes()
    assert extend(run, finished_run, 1, epochs=EPOCHS - 1).finished
    assert (run / "recipe.json").read_bytes() == before


def test_an_interrupted_extension_resumes_bit_exact(run: Path, finished_run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(finished_run, tmp_path / "other"))
    extend(run, finished_run, 1)
    with stopped_before(EPOCHS * 3 + 1):
        assert exit_code(other, finished_run) == 128 + signal.SIGTERM
    assert not excb.Run(other).finished  # the report of the shorter run is gone
    extend(other, finished_run, 1)
    first, second = (run_checkpoint.read_newest(each, print) for each in (run, other))
    assert first is not None
    assert second is not None
    assert_same(first[1], second[1])


@pytest.mark.parametrize(
    ("extension", "optim", "words"),
    [
        (None, {}, r"was extended by 2 epochs: repeat the command with --extend 2$"),
        (1, {}, r"has 5 epochs already: --extend 2 or more$"),
        (2, {"base_lr": 9.0}, r"belongs to another run \(optim.base_lr was"),
        (0, {}, "extend a run by one epoch or more, not by 0"),
    ],
)
def test_what_is_no_extension_of_an_extended_run(
    run: Path, finished_run: Path, extension: int | None, optim: dict[str, float], words: str
) -> None:
    file = run / "recipe.json"
    stored = json.loads(file.read_text())
    stored["recipe"]["optim"] |= {"epochs": EPOCHS + 2, "restarts": [EPOCHS]}
    file.write_text(json.dumps(stored))
    before = file.read_bytes()
    with pytest.raises(UserError, match=words):
        extend(run, finished_run, extension, **optim)
    assert file.read_bytes() == before


def test_a_run_that_is_not_finished_or_not_there_is_not_extended(run: Path, finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--extend continues a finished run, and .*nothing holds none"):
        extend(tmp_path / "nothing", finished_run, 2)
    newest, *older = run_checkpoint.in_run(run)
    for old in older:
        old.unlink()
    newest.rename(newest.with_name(run_checkpoint.name_of(2)))
    report = run / "report.json"
    figures = json.loads(report.read_text())
    report.unlink()
    with pytest.raises(UserError, match="has not finished its 3 epochs: finish it with the command that began it"):
        extend(run, finished_run, 2)
    report.write_text(json.dumps(figures | {"ended": "no gain for 3 measurements"}))
    with pytest.raises(UserError, match=r"ended itself \(no gain for 3 measurements\)"):
        extend(run, finished_run, 2)
    assert (run / "recipe.json").read_bytes() == (finished_run / "recipe.json").read_bytes()


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("extended", "was extended by 2 epochs"),
        ("run.seed=1", "belongs to another run (run.seed was 0, now 1)"),
        ("others", "belongs to another run (other images)"),
        ("among", "is among the images"),
    ],
)
def test_a_dry_run_refuses_the_folder_that_the_run_refuses(
    run: Path, finished_run: Path, capsys: pytest.CaptureFixture[str], case: str, words: str
) -> None:
    images = Path(shutil.copytree(finished_run.parent / "images", run.parent / "images"))
    if case == "extended":
        stored = json.loads((run / "recipe.json").read_text())
        stored["recipe"]["optim"] |= {"epochs": EPOCHS + 2, "restarts": [EPOCHS]}
        (run / "recipe.json").write_text(json.dumps(stored))
    elif case == "others":
        next(images.rglob("*.png")).unlink()
    elif case == "among":
        run = Path(shutil.move(run, images / "run"))
    command = ["quickstart", "--data", str(images), "--out", str(run), *OVERRIDES, *([case] if "=" in case else [])]
    refusals = []
    for line in ([*command, "--dry-run"], command):
        assert main(line) == 2
        refusals.append(capsys.readouterr().err.splitlines()[-1])
    assert refusals[0] == refusals[1]
    assert words in refusals[0]
