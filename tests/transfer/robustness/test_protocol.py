"""Tests of the robustness protocol: figures against a loop, references, other sets, files, resuming and mistakes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn
from torchvision import transforms

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from excb.transfer.compare import compare_results
from excb.transfer.data.classes import labelled_folder
from excb.transfer.leaderboard.submission import check_result
from excb.transfer.protocols import kind_of
from excb.transfer.robustness import corruptions, protocol
from excb.transfer.robustness.chart import curves_of, draw_robustness
from excb.transfer.robustness.corruptions import CorruptedImages
from excb.transfer.robustness.names import SEVERITIES as SEVERITIES_OF_THE_PAPER
from excb.transfer.robustness.options import RobustnessOptions
from excb.transfer.robustness.protocol import measure
from excb.transfer.robustness.record import ROBUSTNESS
from excb.transfer.task import Task
from tests.forked import launch
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import CLASSES, features_by_loop, write_folder
from tests.transfer.robustness.recorder import Recorder, install

pytestmark = pytest.mark.usefixtures("one_thread")
QUIET = Reporter(quiet=True)
NAMES, SEVERITIES, L2 = ("gaussian_noise", "contrast"), (1, 3), 0.02
NONE = ("none",)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, train and test images of seven classes, and other images of two of them."""
    place = tmp_path_factory.mktemp("robustness")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_folder(place / "data" / "train", each=6, seed=1)
    write_folder(place / "data" / "test", each=3, seed=2)
    write_folder(place / "sketch", each=4, seed=3, classes=("bee", "dog", "yak"))
    return place


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return install(monkeypatch)


def task(place: Path, cache: Path | None = None) -> Task:
    train, test = (place / "data" / name for name in ("train", "test"))
    return Task.prepare(str(place / "run"), train, test, device="cpu", batch=8, workers=0, cache=cache)


OPTIONS = RobustnessOptions(corruptions=NAMES, severities=SEVERITIES, l2=(L2,))


class Loop:
    """The same by scikit-learn's regression and one image after another."""

    def __init__(self, place: Path) -> None:
        self.backbone = excb.load(place / "run")
        rows, labels = features_by_loop(self.backbone, place / "data" / "train")
        self.mean, deviation = rows.mean(0), rows.std(0)
        self.scale = np.where(deviation > 1e-6, deviation, 1)  # of units that are always 0
        regression = LogisticRegression(C=1 / (L2 * len(rows)), tol=1e-10, max_iter=10_000)
        self.model = regression.fit((rows - self.mean) / self.scale, labels)
        self.test = labelled_folder(place / "data" / "test")

    def probabilities(self, rows: Any) -> np.ndarray:
        return np.asarray(self.model.predict_proba((rows - self.mean) / self.scale))

    def corrupted(self, name: str, severity: int) -> np.ndarray:
        cut = transforms.Compose([transforms.Resize(36), transforms.CenterCrop(32)])
        transform = self.backbone.transform
        images = CorruptedImages(self.test, transform, name, SEVERITIES, 0)
        rows = []
        with torch.no_grad():
            for index in range(len(self.test)):
                made = images.open(index * len(SEVERITIES) + SEVERITIES.index(severity))
                assert made.size == cut(self.test.open(index)).size
                pixels = transforms.ToTensor()(made)
                pixels = transforms.Normalize(transform.mean, transform.std)(pixels)
                rows.append(self.backbone(pixels[None])[0].double().numpy())
        return self.probabilities(np.stack(rows))

    def judged(self, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Hits, and the lowest and highest calibration error in percent if confidences were a little other.

        An image's confidence may lie so near to the edge of a bin that rounding decides which one it is in.
        """
        hits, confidence = probabilities.argmax(1) == self.test.labels, probabilities.max(1)
        errors = []
        for change in (-1e-3, 0, 1e-3):
            place, error = np.ceil(15 * (confidence + change)), 0.0
            for number in np.unique(place):
                own = place == number
                error += own.mean() * abs(hits[own].mean() - confidence[own].mean())
            errors.append(100 * error)
        return hits, np.array([min(errors), max(errors)])


def test_figures_are_those_of_a_loop(place: Path) -> None:
    loop = Loop(place)
    reference = place / "reference.json"
    assert main(command(place, "--l2", "5", "--out", str(reference))) == 0
    base = ResultRecord.read(reference)
    measured = measure(task(place), replace(OPTIONS, reference=str(reference)), QUIET)
    result, scored = measured.result, measured.scored
    clean, clean_error = loop.judged(loop.probabilities(features_by_loop(loop.backbone, place / "data" / "test")[0]))
    cells = {(name, s): loop.judged(loop.corrupted(name, s)) for name in NAMES for s in SEVERITIES}
    figures = result.figures
    for (name, severity), (hits, _) in cells.items():
        assert figures[f"robustness_top1_{name}_{severity}"] == pytest.approx(100 * hits.mean(), abs=1e-3)
    accuracy = {name: np.mean([cells[name, s][0].mean() for s in SEVERITIES]) for name in NAMES}
    corrupted = np.mean([*accuracy.values()])
    assert figures["robustness_clean_top1"] == pytest.approx(100 * clean.mean(), abs=1e-3)
    assert figures["robustness_corrupted_top1"] == pytest.approx(100 * corrupted, abs=1e-3)
    assert figures["robustness_relative_drop"] == pytest.approx(100 * (1 - corrupted / clean.mean()), abs=1e-3)
    for name, (low, high) in (
        ("clean", clean_error),
        ("corrupted", np.mean([error for _, error in cells.values()], axis=0)),
    ):
        assert low - 0.2 <= figures[f"robustness_{name}_ece"] <= high + 0.2
        assert high < low + 5
    ratios = [(1 - accuracy[name]) / (1 - base.figures[f"robustness_top1_{name}"] / 100) for name in NAMES]
    assert figures["robustness_mce"] == pytest.approx(100 * np.mean(ratios), abs=1e-2)
    for name, (low, high) in result.intervals.items():
        assert low <= figures[name] <= high
    assert figures["robustness_clean_top1"] > figures["robustness_top1_severity_3"] > 0
    assert result.references["majority"]["robustness_clean_top1"] == pytest.approx(100 / 7, abs=1e-4)
    assert list(scored.values)[:3] == ["robustness_corrupted_top1", "robustness_clean_top1", "robustness_mce"]
    assert result.settings["reference"]["name"] == base.checkpoint["name"]


def test_a_set_of_the_same_classes_stands_beside_the_clean_images_of_these(place: Path) -> None:
    loop = Loop(place)
    rows, labels = features_by_loop(loop.backbone, place / "sketch")
    both: tuple[Literal["common", "all"], ...] = ("common", "all")
    for candidates in both:
        options = RobustnessOptions(corruptions=NONE, also=(str(place / "sketch"),), l2=(L2,), candidates=candidates)
        result = measure(task(place), options, QUIET).result
        own = np.array([CLASSES.index(name) for name in ("bee", "dog")])
        named = own if candidates == "common" else np.arange(7)
        known = np.array(labels) != "yak"  # of which no train image is
        guesses = named[loop.probabilities(rows)[known][:, named].argmax(1)]
        truth = np.array([CLASSES.index(name) for name in labels if name != "yak"])
        assert result.figures["robustness_on_sketch_top1"] == pytest.approx(100 * (guesses == truth).mean(), abs=1e-3)
        test_rows, test_labels = features_by_loop(loop.backbone, place / "data" / "test")
        truths = np.array([CLASSES.index(name) for name in test_labels])
        beside = np.isin(truths, own)
        guesses = named[loop.probabilities(test_rows)[beside][:, named].argmax(1)]
        clean = 100 * (guesses == truths[beside]).mean()
        assert result.figures["robustness_on_sketch_clean_top1"] == pytest.approx(clean, abs=1e-3)
        assert result.data["sketch"]["images"] == 8
        guessed = result.references["majority"]  # all classes have equally many train images
        for figure in ("robustness_on_sketch_top1", "robustness_on_sketch_clean_top1"):
            assert guessed[figure] == pytest.approx(100 / len(named), abs=1e-3)
        assert "robustness_corrupted_top1" not in result.figures


def test_classes_that_a_map_puts_together_are_one_on_the_clean_images_too(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    file.write_text(json.dumps({"bee": ["bee", "dog"], "dog": ["dog", "bee"]}), encoding="utf-8")
    options = RobustnessOptions(corruptions=NONE, also=(f"{place / 'sketch'}={file}",), l2=(L2,))
    figures = measure(task(place), options, QUIET).result.figures
    assert figures["robustness_on_sketch_top1"] == figures["robustness_on_sketch_clean_top1"] == 100


def test_several_labels(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "labels.json"
    names = [f"{name}/{number}" for name in CLASSES[:2] for number in range(3)]
    paths = [path for path in labelled_folder(place / "data" / "test").paths if path.rpartition(".")[0] in names]
    file.write_text(json.dumps({path: [*CLASSES] if "ant" in path else [] for path in paths}), encoding="utf-8")
    measured = measure(task(place), RobustnessOptions(corruptions=NONE, labels=file, l2=(L2,)), QUIET)
    result, scored = measured.result, measured.scored
    assert result.figures["robustness_labels_top1"] == 100  # every class is right
    assert result.references["majority"]["robustness_labels_top1"] == 100
    assert int((~scored.values["robustness_labels_top1"].isnan()).sum()) == 3


def test_references_of_corruption_errors(place: Path) -> None:
    result = measure(task(place), OPTIONS, QUIET).result
    assert "no mCE: it needs --reference, errors to compare with" in result.notes
    assert "robustness_mce" not in result.figures
    result = measure(task(place), replace(OPTIONS, reference="untrained"), QUIET).result
    assert result.settings["reference"]["name"] == "the same network untrained"
    assert result.figures["robustness_mce"] > 0
    with pytest.raises(UserError, match="--reference alexnet: its published errors are of ImageNet"):
        measure(task(place), replace(OPTIONS, reference="alexnet"), QUIET)


def test_on_imagenet_errors_are_relative_to_alexnets(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "is_imagenet", lambda _classes: True)
    monkeypatch.setattr(protocol, "ALEXNET_SIDE", 32)  # of this run's images
    options = replace(OPTIONS, corruptions=("fog", "saturate"), severities=SEVERITIES_OF_THE_PAPER)
    result = measure(task(place), options, QUIET).result
    figures = result.figures
    fog, clean = (1 - figures[f"robustness_{name}"] / 100 for name in ("top1_fog", "clean_top1"))
    assert figures["robustness_mce"] == pytest.approx(100 * fog / 0.819324, abs=1e-3)
    assert figures["robustness_relative_mce"] == pytest.approx(100 * (fog - clean) / (0.819324 - 0.435), abs=1e-3)
    assert result.settings["reference"]["name"] == "AlexNet (published)"
    result = measure(task(place), replace(options, severities=(1, 2)), QUIET).result
    assert "no mCE: AlexNet's published errors are means over severities 1 to 5" in result.notes
    result = measure(task(place), replace(options, stored="exact"), QUIET).result
    assert any("were stored as JPEGs" in note for note in result.notes)
    monkeypatch.setattr(protocol, "ALEXNET_SIDE", 224)
    result = measure(task(place), options, QUIET).result
    assert "no mCE: AlexNet's published errors are of images of 224 pixels, and these have 32" in result.notes
    with pytest.raises(UserError, match="of 224 pixels, and these have 32"):
        measure(task(place), replace(options, reference="alexnet"), QUIET)


def test_a_reference_on_other_images_is_refused(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    assert main(command(place, "--images", "14", "--out", str(file))) == 0
    assert ResultRecord.read(file).data["test"]["images"] == 14
    with pytest.raises(UserError, match="is of other test images"):
        measure(task(place), replace(OPTIONS, reference=str(file)), QUIET)
    assert main(command(place, "--severities", "1", "--out", str(file), "--overwrite")) == 0
    with pytest.raises(UserError, match=r"has severities \[1\], not \[1, 3\]"):
        measure(task(place), replace(OPTIONS, reference=str(file)), QUIET)
    with pytest.raises(UserError, match="it is alexnet, untrained, or the file"):
        measure(task(place), replace(OPTIONS, reference="alexnett"), QUIET)


def test_means_are_over_the_papers_fifteen(place: Path) -> None:
    one = measure(task(place), replace(OPTIONS, corruptions=("fog",)), QUIET).result
    two = measure(task(place), replace(OPTIONS, corruptions=("fog", "saturate")), QUIET).result
    assert two.figures["robustness_corrupted_top1"] == one.figures["robustness_corrupted_top1"]
    extra = measure(task(place), replace(OPTIONS, corruptions=("saturate",)), QUIET).result
    assert extra.figures["robustness_corrupted_top1"] == two.figures["robustness_top1_saturate"]


def usual(place: Path) -> list[str]:
    words = ["robustness", "--ckpt", str(place / "run"), "--data", str(place / "data"), "--device", "cpu"]
    return [*words, "--workers", "0", "--no-cache", "--quiet", "--l2", str(L2)]


def command(place: Path, *words: str) -> list[str]:
    return [*usual(place), "--corruptions", *NAMES, "--severities", *map(str, SEVERITIES), *words]


def test_files_are_recounted_compared_and_listed(place: Path, tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, l2 in zip(files, ("0.02", "3"), strict=True):
        words = ("--also", str(place / "sketch"), "--untrained", "--reference", "untrained")
        assert main(command(place, *words, "--l2", l2, "--out", str(file))) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"{one}.{kind}" for one in "ab" for kind in ("json", "npz", "severity.png")}
    assert any("recounted" in line for line in check_result(files[0], ResultRecord.read(files[0])))
    result = ResultRecord.read(files[0])
    assert result.references["untrained"].keys() >= {"robustness_clean_top1", "robustness_corrupted_ece"}
    assert compare_results(files[0], files[1], QUIET, figure="robustness_clean_top1", table=False)["figures"]
    assert main(["leaderboard", str(tmp_path), "--out", str(tmp_path / "board"), "--quiet"]) == 0
    text = (tmp_path / "board" / "leaderboard.md").read_text(encoding="utf-8")
    table = text.partition("## Robustness: corrupted test images")[2].partition("\n## ")[0]
    assert "corrupted top-1" in table
    assert "sketch top-1" in text.partition("## Robustness: other test sets")[2]


def test_corrupted_features_are_kept(
    place: Path, tmp_path: Path, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in command(place) if word != "--no-cache"] + ["--cache", str(tmp_path / "cache")]
    assert main([*words, "--dry-run"]) == 0
    assert "gaussian_noise: 42 images, none cached" in capsys.readouterr().out
    assert main(words) == 0
    first, calls = capsys.readouterr().out, len(recorder.calls)
    assert "corrupted top-1" in first
    assert main(words) == 0
    assert capsys.readouterr().out == first
    assert len(recorder.calls) == calls  # nothing was corrupted again
    assert main([*words, "--dry-run"]) == 0
    assert "gaussian_noise: 42 images, 42 of them cached" in capsys.readouterr().out
    del recorder.calls[calls:]  # those that the dry run timed
    assert main([*words, "--corruptions", *NAMES, "fog"]) == 0
    assert {name for name, _ in recorder.calls[calls:]} == {"fog"}
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["protocol"] == "robustness"


def test_a_dry_run_counts_the_time_of_corrupting(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(corruptions, "seconds_of", lambda *_args, **_options: 100.0)
    assert main(command(place, "--dry-run", "--json")) == 0
    assert 8400 < json.loads(capsys.readouterr().out)["seconds"] < 8700  # 2 corruptions of 42 images each
    assert corruptions.seconds_of("contrast", (1, 3), 32, stored=True) > 0


def test_a_dry_run_refuses_what_is_no_reference(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(place, "--dry-run", "--reference", "nothing")) == 2
    assert "--reference nothing: it is alexnet, untrained, or the file of" in capsys.readouterr().err
    assert main(command(place, "--dry-run", "--reference", "untrained")) == 0
    assert "all of that once more with the same network untrained" in capsys.readouterr().out


def test_an_untrained_network_is_no_reference_of_its_own_and_the_result_says_so(place: Path) -> None:
    own = replace(task(place), backbone=excb.load("untrained:conv4"))
    result = measure(own, replace(OPTIONS, reference="untrained"), QUIET).result
    assert "no mCE: the network is untrained itself" in result.notes
    assert "robustness_mce" not in result.figures


def test_two_processes_give_the_answer_of_one(place: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    words = [*usual(place), "--corruptions", "none", "--also", str(place / "sketch")]
    assert main([*words, "--out", str(one)]) == 0
    assert launch("excb.transfer.cli", [*words, "--out", str(two)], 2) == 0
    first, second = (ResultRecord.read(file) for file in (one, two))
    assert (first.figures, first.intervals, first.protocol_hash) == (
        second.figures,
        second.intervals,
        second.protocol_hash,
    )


def test_fewer_images_than_classes_are_one_of_each_and_the_result_says_so(place: Path) -> None:
    options = RobustnessOptions(corruptions=NONE, l2=(L2,))
    few, enough = (measure(task(place), replace(options, images=n), QUIET).result for n in (3, 9))
    assert few.data["test"]["images"] == len(CLASSES)
    assert f"--images 3: {len(CLASSES)} test images, one of every class" in few.notes
    assert enough.data["test"]["images"] == 9
    assert not any("--images" in note for note in enough.notes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--corruptions", "smog"), "--corruptions smog"),
        (("--severities", "6"), "--severities are 1 to 5"),
        (("--images", "0"), "--images 0: at least one"),
        (("--l2", "0"), "--l2 must be above 0"),
        (("--also", "nowhere"), "nowhere"),
        (("--border", "-1"), "--border -1"),
        (("--labels", "nowhere.json"), "cannot read nowhere.json"),
        (("--resize", "24", "--crop", "24"), "from 32 pixels on"),
        (("--reference", "nothing"), "--reference nothing: it is alexnet, untrained"),
    ],
)
def test_mistakes_are_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(command(place, *words)) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"severities": (1,)}, "--severities needs corruptions"),
        ({"stored": "exact"}, "--stored needs corruptions"),
        ({"reference": "untrained"}, "--reference needs corruptions"),
        ({"candidates": "all"}, "--candidates needs other sets"),
        ({"also": ("sketch",), "border": 2}, "--border needs a set with a map"),
        ({"l2": (L2,), "seed": 1}, "--seed needs corruptions, --images or several --l2"),
    ],
)
def test_an_option_of_no_use_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RobustnessOptions(corruptions=NONE, **options).check(None)
    RobustnessOptions(corruptions=NONE, also=("sketch=map.json",), border=2, candidates="all", seed=1).check(None)
    RobustnessOptions(corruptions=NONE, images=7, l2=(L2,), seed=1).check(None)


def test_two_sets_of_one_name_are_refused(place: Path, tmp_path: Path) -> None:
    other = write_folder(tmp_path / "Sketch", each=1, classes=("ant", "bee"))
    options = RobustnessOptions(corruptions=NONE, also=(str(place / "sketch"), str(other)), l2=(L2,))
    with pytest.raises(UserError, match="two sets with one name"):
        measure(task(place), options, QUIET)


def test_the_ledger_has_what_was_left_out_of_other_sets(place: Path, tmp_path: Path) -> None:
    other = write_folder(tmp_path / "art", each=1, classes=("ant", "bee"))
    (other / "ant" / "read.txt").write_text("words")
    result = measure(task(place), RobustnessOptions(corruptions=NONE, also=(str(other),), l2=(L2,)), QUIET).result
    assert "left out of art: 1 .txt" in result.ledger.lines()


def test_from_python_and_networks_with_a_transform_of_their_own(place: Path) -> None:
    pytest.importorskip("cv2", reason="OpenCV is not installed")
    quick: dict[str, Any] = {"data": place / "data", "device": "cpu", "workers": 0, "no_cache": True, "quiet": True}
    named = excb.evaluate(place / "run", "robustness", corruptions=[*NAMES], severities=[1, 3], l2=[L2], **quick)
    assert named.main == "robustness_corrupted_top1"
    network = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    network.__dict__["transform"] = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    with pytest.raises(UserError, match="which its own transform does not name"):
        excb.evaluate(network, "robustness", l2=[L2], **quick)
    assert excb.evaluate(network, "robustness", corruptions=["none"], l2=[L2], **quick).figures


def test_kinds_of_figures_and_their_fields() -> None:
    kind = kind_of("robustness_mce")
    assert kind is not None
    assert (kind.metric, kind.higher_is_better) == ("mCE", False)
    assert kind_of("robustness_top1_fog") is None
    assert kind_of("robustness_top1_fog_3") is None
    settings: dict[str, Any] = {"corruptions": ["fog"], "reference": None, "l2": [1]}
    settings |= {"sets": {"a": {"classes": 2}}, "candidates": "all"}
    assert ROBUSTNESS.result_fields(settings, kind) == {"corruptions": ["fog"], "reference": None, "l2": [1]}
    kind = kind_of("robustness_on_a_clean_top1")
    assert kind is not None
    assert (kind.family, kind.metric) == ("robustness_sets", "a clean top-1")
    assert ROBUSTNESS.result_fields(settings, kind) == {"l2": [1], "candidates": "all", "sets": {"classes": 2}}
    kind = kind_of("robustness_clean_top1")
    assert kind is not None
    assert "reference" not in ROBUSTNESS.result_fields(settings, kind)


def test_curves_start_at_the_clean_accuracy() -> None:
    figures = {"robustness_clean_top1": 90.0, "robustness_top1_fog_1": 80.0, "robustness_top1_severity_1": 80.0}
    curves = curves_of(figures)
    assert curves == {"severity": {0: 90.0, 1: 80.0}, "fog": {0: 90.0, 1: 80.0}}
    assert curves_of({"robustness_clean_top1": 90.0}) == {}
    panels = draw_robustness(curves).axes
    assert [axes.get_title() for axes in panels] == ["mean", "fog"]
    assert [np.asarray(line.get_ydata()).tolist() for line in panels[0].lines] == [[90.0, 80.0]]
