"""The experiment on tiny images: what is measured, that no short run sees it, and the commands that follow."""

import itertools
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from excb.images.scanning import scan_folder
from excb.networks.preprocessing import Preprocessing
from excb.pretrain.__main__ import main, parse_command_line
from excb.pretrain.choosing import experiment, short_runs
from excb.pretrain.choosing.sample import draw_images
from excb.pretrain.choosing.short_runs import adapting_values, sizes_of
from excb.pretrain.plan import choice
from excb.pretrain.plan.speed import StepSpeed
from excb.pretrain.run.taught import NetworkCost
from tests.pretrain.small_runs import write_images

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), classes=3, each=70, side=32)


def test_no_short_run_sees_what_is_measured(images: Path) -> None:
    everything = scan_folder(images)
    drawn = draw_images(everything)
    assert len(drawn.measured) == 105
    assert not set(drawn.measured.paths) & set(drawn.learned.paths)
    assert {*drawn.measured.paths, *drawn.learned.paths} == {*everything.paths}
    assert draw_images(everything).measured.paths == drawn.measured.paths
    assert drawn.labelled
    some = scan_folder(images / "class0")
    assert not draw_images(some).labelled


def test_labelled_images_are_measured_and_the_others_learned_from(images: Path) -> None:
    everything = scan_folder(images)
    labelled = draw_images(everything).measured
    drawn = draw_images(everything, labelled)
    assert {*drawn.measured.paths} == {*labelled.paths}
    assert {*drawn.learned.paths} == {*everything.paths} - {*labelled.paths}


@pytest.mark.parametrize(("side", "size"), [(32, 96), (64, 96), (128, 160), (400, 224)])
def test_large_networks_see_small_images_at_a_size_that_suits_both(side: int, size: int) -> None:
    own = Preprocessing(256, 224)
    assert sizes_of(own, side) == size
    assert bool(adapting_values(own, size)) == (size != 224)


@pytest.fixture
def a_machine_of_known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the trials nor their epochs depend on how busy this machine is."""
    monkeypatch.setattr(choice, "_images_per_second", lambda *_: 10.0)
    monkeypatch.setattr(short_runs, "measure_step", lambda *_args, **_more: StepSpeed(1.0, 8, 1, None))
    costs = (NetworkCost(count, 1.0, count / 1e6) for count in itertools.cycle([5_000_000, 700_000]))
    monkeypatch.setattr(experiment, "measure_cost", lambda *_: next(costs))
    monkeypatch.delitem(short_runs.COLOURS, "strong changes of colour")


@pytest.mark.usefixtures("a_machine_of_known_speed")
def test_an_experiment_from_end_to_end(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["choose", "--data", str(images), "--out", str(out), "--gpus", "0"]
    assert main([*words, "--networks", "untrained:timm:resnet10t", "--minutes", "10"]) == 0
    printed = capsys.readouterr()
    report = json.loads((out / "choose.json").read_text(encoding="utf-8"))
    kinds = {trial["kind"] for trial in report["trials"]}
    assert kinds == {"reference", "frozen", "distilled", "adapted", "pretrained"}
    names = [trial["name"] for trial in report["trials"]]
    for trial in report["trials"]:
        low, high = trial["interval"]
        assert low <= trial["figures"]["knn_top1"] <= high
    assert {"guessing", "raw pixels", "colour histogram", "whitened patches with k-means"} <= {*names}
    assert (report["measured"], report["learned"], report["labels"]) == (105, 105, True)
    assert report["headline"] in printed.out
    for step in report["commands"]:
        assert step["command"] in printed.out
        program, *arguments = shlex.split(step["command"])
        if program == "excb-pretrain":
            parse_command_line(arguments)
    page = (out / "choose.html").read_text(encoding="utf-8")
    assert report["headline"] in page
    assert all(name in page for name in names)
    assert not (out / "short-runs").exists() or not any((out / "short-runs").iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--no-pilots", "--networks", "a"], "--networks says what to try: leave --no-pilots out"),
        (["--minutes", "0"], "--minutes must be above 0"),
        (["--networks", "nothing_of_that_name"], "nothing_of_that_name"),
        (["--labels", "missing.csv"], "cannot read the labels missing.csv"),
        (["--out", "{images}/page"], "images"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(images.parent)
    words = [word.replace("{images}", str(images)) for word in words]
    assert main(["choose", "--data", str(images), "--gpus", "0", *words]) == 2
    assert said in capsys.readouterr().err


def test_few_images_need_no_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (64, 16, 16, 3), np.uint8)
    for number, each in enumerate(pixels):
        Image.fromarray(each).save(tmp_path / f"{number}.png")
    assert main(["choose", "--data", str(tmp_path), "--gpus", "0", "--out", str(tmp_path.parent / "page")]) == 2
    assert "--no-pilots proposes a recipe without one" in capsys.readouterr().err
