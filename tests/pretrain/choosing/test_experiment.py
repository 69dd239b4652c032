"""The experiment on tiny images: what is measured, that no short run sees it, and the commands that follow."""

import itertools
import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder
from excb.images.survey import surveyed, with_pixels
from excb.networks.preprocessing import Preprocessing
from excb.pretrain.__main__ import main, parse_command_line
from excb.pretrain.channels import fit_channels
from excb.pretrain.choosing import experiment, page, short_runs
from excb.pretrain.choosing.commands import next_steps
from excb.pretrain.choosing.recommendation import Recommendation
from excb.pretrain.choosing.sample import TrialImages, draw_images
from excb.pretrain.choosing.short_runs import FrozenNetwork, adapting_values, sizes_of
from excb.pretrain.choosing.trials import Experiment, Kind, Trial
from excb.pretrain.commands import choose
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan import choice
from excb.pretrain.plan.choice import RecipeChoice
from excb.pretrain.plan.speed import StepSpeed
from excb.pretrain.recipe import Recipe
from excb.pretrain.run.monitor import NetworkFigures
from excb.pretrain.run.rules import FOLLOWED
from excb.pretrain.run.taught import NetworkCost
from excb.pretrain.training.statistics import measured
from tests.pretrain.small_runs import OVERRIDES, write_images

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


@pytest.mark.parametrize("above", [False, True])
def test_labelled_images_are_measured_and_the_others_learned_from(images: Path, above: bool) -> None:
    everything = scan_folder(images)
    some = everything.paths[::2]
    # A table beside the folder has paths that start there.
    listed = [f"{images.name}/{path}" for path in some] if above else list(some)
    labelled = ImageSet(images.parent if above else images, listed, np.arange(len(some)) % 2, ("a", "b"))
    drawn = draw_images(everything, labelled)
    assert {*drawn.measured.paths} == {*listed}
    assert {*drawn.learned.paths} == {*everything.paths} - {*some}


def test_labels_are_of_files() -> None:
    shards: Any = SimpleNamespace(root="shards", paths=["a"])
    with pytest.raises(UserError, match="--labels names files, and shards holds none: leave it out"):
        draw_images(shards, ImageSet(Path(), ["a"]))


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
    monkeypatch.setattr(short_runs, "SMALLEST", 32)  # a trained network sees these images at 64 pixels, not at 96


@pytest.mark.usefixtures("a_machine_of_known_speed")
def test_an_experiment_from_end_to_end(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["choose", "--data", str(images), "--out", str(out), "--gpus", "0"]
    assert main([*words, "--networks", "untrained:timm:resnet10t", "--minutes", "10"]) == 0
    printed = capsys.readouterr()
    said = next(line for line in printed.err.splitlines() if line.startswith("labels: "))
    assert said.startswith("labels: the 3 classes of these images (")
    assert said.endswith("); if folders are none, name the images with --list")
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
    shown = (out / "choose.html").read_text(encoding="utf-8")
    assert report["headline"] in shown
    assert all(name in shown for name in names)
    assert sorted(file.name for file in out.iterdir()) == ["choose.html", "choose.json"]
    page.refuse_other_choice(out, str(images))  # its own may be replaced
    with pytest.raises(UserError, match=r"choose\.html has the page of other images: name another folder with --out"):
        page.refuse_other_choice(out, str(tmp_path))


@pytest.mark.parametrize("name", ["choose.html", "choose.json"])
def test_files_of_something_else_are_kept(
    name: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def experimented(*_: object) -> int:
        raise AssertionError("an experiment")

    monkeypatch.setattr(choose, "_experiment", experimented)
    words = ["choose", "--data", str(images), "--gpus", "0", "--out", str(tmp_path), "--quiet"]
    for other in ("notes", "<p>excb-pretrain choose</p>"):
        (tmp_path / name).write_text(other)
        assert main(words) == 2
        shown = capsys.readouterr().err
        assert (shown.count("\n"), f"{tmp_path / name} is there" in shown, "--overwrite" in shown) == (1, True, True)
        assert (tmp_path / name).read_text() == other
    with pytest.raises(AssertionError, match="an experiment"):
        main([*words, "--overwrite"])
    assert main([*words, "--overwrite", "--no-pilots"]) == 2
    assert "--overwrite is of the page, and --no-pilots writes none" in capsys.readouterr().err


def runner_of(sample: TrialImages, base: Recipe, out: Path) -> experiment.TrialRunner:
    return experiment.TrialRunner(
        sample, base, side=32, minutes=10, device=torch.device("cpu"), workers=0, out=out, reporter=Reporter(quiet=True)
    )


def small_base(sample: TrialImages, *overrides: str) -> Recipe:
    base = apply(find_recipe("quickstart"), [*OVERRIDES, *overrides])
    return measured(fit_channels(base, sample.learned.pixels.channels), sample.learned, lambda _line: None)


def test_networks_of_other_channels_are_left_out_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "planned_runs", lambda *_: [])
    for number in range(20):
        np.save(tmp_path / f"{number}.npy", np.random.default_rng(number).integers(0, 255, (32, 32, 5), np.uint8))
    found = scan_folder(tmp_path)
    sample = draw_images(with_pixels(found, surveyed(found).pixels))
    runner = runner_of(sample, small_base(sample), tmp_path / "out")
    tried = runner.run(["conv4_photos"], required=False)
    assert len(tried.of("reference")) == 5
    assert "have 5 channels, and the network takes 3" in tried.skipped["conv4_photos"]
    with pytest.raises(UserError, match="have 5 channels, and the network takes 3"):
        runner_of(sample, small_base(sample), tmp_path / "out").run(["conv4_photos"], required=True)


def test_the_first_network_may_take_more_of_the_time_than_those_after_it(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = draw_images(scan_folder(images))
    runner = runner_of(sample, small_base(sample), tmp_path / "out")  # 10 minutes
    half = 1000 * 0.5 * 600 / len(sample.measured)  # milliseconds an image
    monkeypatch.setattr(experiment, "planned_runs", lambda *_: [])
    monkeypatch.setattr(experiment, "measure_cost", lambda *_: NetworkCost(1_000_000, 4.0, half))
    tried = runner.run(["untrained:conv4", "conv4_photos"], required=True)
    assert [each.name for each in tried.of("frozen")] == ["untrained:conv4"]
    assert tried.too_slow == ("conv4_photos",)
    assert tried.skipped["conv4_photos"].startswith("as it is, it takes 5 min")


def test_images_that_cannot_be_read_are_not_counted_as_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "planned_runs", lambda *_: [])
    folder = write_images(tmp_path / "images", classes=2, each=20, side=32)
    sample = draw_images(scan_folder(folder))
    broken = sample.measured.paths[:3]
    for path in broken:
        (folder / path).write_bytes(b"no image")
    tried = runner_of(sample, small_base(sample), tmp_path / "out").run([], required=True)
    assert tried.measured == len(sample.measured) - len(broken)
    guess = next(trial for trial in tried.of("reference") if trial.name == "guessing")
    left = [Path(path).parent.name for path in sample.measured.paths if path not in broken]
    most = max(left.count(name) for name in left)
    assert guess.value == pytest.approx(100 * most / len(left), abs=0.01)


def test_a_request_to_stop_keeps_what_was_measured(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_runs, "measure_step", lambda *_args, **_more: StepSpeed(1.0, 8, 1, None))
    monkeypatch.setattr(experiment, "run_training", lambda *_args, **_more: 143)
    sample = draw_images(scan_folder(images))
    (tmp_path / "short-runs").mkdir()  # somebody's own, which stays
    tried = runner_of(sample, small_base(sample), tmp_path).run([], required=True)
    assert [file.name for file in tmp_path.iterdir()] == ["short-runs"]
    assert tried.stopped == 143
    assert len(tried.of("reference")) == 5
    assert len(tried.skipped) == 3
    assert set(tried.skipped.values()) == {"stopped"}


@pytest.mark.parametrize("deep", [True, False])
def test_short_runs_share_the_range_of_the_images(
    images: Path, deep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those whose images, of a set of several depths, all have 8 bits: these are as they are."""
    monkeypatch.setattr(short_runs, "measure_step", lambda *_args, **_more: StepSpeed(10.0, 8, 1, None))
    if deep:
        for number in range(210):
            Image.fromarray(np.full((32, 32), 9 * number, np.uint16)).save(tmp_path / f"{number}.png")
    sample = draw_images(scan_folder(tmp_path if deep else images))
    base = small_base(sample, "data.range=0..4095")
    (*_, last) = short_runs.planned_runs(base, len(sample.learned), None)
    fitting = short_runs.fit_run(last, base, sample.learned, 60, torch.device("cpu"), slowdown=1.0)
    assert isinstance(fitting, short_runs.ShortRun)
    assert fitting.recipe.data.range == ("0..4095" if deep else None)
    assert fitting.recipe.optim.epochs == 600 // len(sample.learned)


@pytest.mark.parametrize("proposed", ["photos_small", "cifar10_small", "rn18_small"])
def test_a_student_is_the_network_that_is_proposed(proposed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_runs, "_has_fewer_weights", lambda *_: True)
    monkeypatch.setattr(short_runs, "adopted", lambda recipe, _note: recipe)
    teacher = excb.load("conv4_photos")
    best = FrozenNetwork("conv4_photos", teacher, teacher.transform, NetworkCost(1_000, 1.0, 1.0), 50.0)
    base = find_recipe(proposed)
    taught = next(planned for planned in short_runs.planned_runs(base, 2_000, best) if planned.kind == "distilled")
    assert taught.recipe.model.architecture == base.model.architecture
    assert taught.name.startswith(f"{base.model.backbone} taught by")
    assert apply(find_recipe("distil"), ["distil.teachers=conv4_photos", *taught.keep]).model == taught.recipe.model


def test_the_teacher_of_a_short_run_follows(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_runs, "measure_step", lambda *_args, **_more: StepSpeed(10.0, 8, 1, None))
    sample = draw_images(scan_folder(images))
    base = small_base(sample, "method.teacher_momentum=0.99", "optim.batch=64")
    planned = short_runs.planned_runs(base, len(sample.learned), None)[0]
    fitting = short_runs.fit_run(planned, base, sample.learned, 30, torch.device("cpu"), slowdown=1.0)
    assert isinstance(fitting, short_runs.ShortRun)
    steps = fitting.recipe.steps_per_epoch(len(fitting.images)) * fitting.recipe.optim.epochs
    assert FOLLOWED / (1 - fitting.recipe.method.teacher_momentum) <= steps
    assert fitting.recipe.method.teacher_momentum < base.method.teacher_momentum


def test_commands_name_the_list_and_the_range() -> None:
    choice_made = RecipeChoice(
        "photos_small",
        ("data.range=0..9",),
        "photos",
        100,
        32,
        1.0,
        listed=Path("a.txt"),
        declared=("data.range=0..9",),
    )
    reading = NetworkFigures({"knn_top1": 50.0}, "knn_top1", torch.ones(100).bool(), torch.ones(25, 100).bool())
    kinds: list[Kind] = ["frozen", "adapted", "distilled", "pretrained"]
    trials = tuple(Trial(kind, kind, reading, 1.0, speed=1.0, base="net") for kind in kinds)
    tried = Experiment(trials, 100, 100, labelled=True, networks=1)
    steps = next_steps(tried, Recommendation("use", trials[0], ""), choice_made)
    assert [step.recommended for step in steps] == [True, False, False, False]
    for step in steps:
        assert "--data photos --list a.txt" in step.command
        assert ("--range 0..9" if step.hours is None else "data.range=0..9") in step.command


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
