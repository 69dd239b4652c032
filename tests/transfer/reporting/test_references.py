"""References beside accuracies: guessing, pixels, colours, the same network untrained; and warnings below them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import CenterCrop, Compose, Resize, ToTensor

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.images.scanning import scan_folder
from excb.networks.preprocessing import Preprocessing
from excb.references import patches
from excb.references.untrained import estimate_batchnorm
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from excb.transfer.knn.options import KnnOptions
from excb.transfer.knn.protocol import measure
from excb.transfer.reporting.predictions import Predictions
from excb.transfer.reporting.references import (
    Answered,
    below,
    nearly_by_chance,
    print_references,
    tell_notes,
    with_references,
)
from excb.transfer.task import Task
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import features_by_loop, knn_by_loop, write_folder
from tests.transfer.result_files import result

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("references")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    for part, each, seed in (("train", 3, 1), ("test", 2, 2)):
        write_folder(place / "data" / part, each=each, seed=seed, classes=("ant", "bee", "cat"))
        write_folder(place / "data" / part, each=4 * each, seed=seed + 5, classes=("dog",))
    return place


def knn(place: Path, *words: str, ckpt: str = "") -> int:
    usual = ["--ckpt", ckpt or str(place / "run"), "--data", str(place / "data"), "--no-cache", "--k", "5"]
    return int(main(["knn", *usual, "--workers", "0", "--device", "cpu", *words]))


def test_every_accuracy_has_its_references(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = place / "out" / "knn.json"
    assert knn(place, "--untrained", "--out", str(file)) == 0
    out = capsys.readouterr().out
    assert "References, %" in out
    assert "untrained" in out.partition("References")[2]
    found = ResultRecord.read(file)
    # Twelve of twenty-one train images, and eight of fourteen test images, are dogs; there are four classes.
    assert found.references["majority"] == {"knn_top1_k5": round(100 * 8 / 14, 4), "knn_top5_k5": 100.0}
    assert found.references["chance"] == {"knn_top1_k5": 25.0, "knn_top5_k5": 100.0}

    transform = excb.load(place / "run").transform
    other = excb.load("untrained:timm:resnet10t")
    assert other.width != excb.load(place / "run").width  # the twin has the run's own options
    twin = Task.prepare(
        str(place / "run"), place / "data" / "train", place / "data" / "test", device="cpu", workers=0
    ).untrained()
    sides = [features_by_loop(twin.backbone, place / "data" / part, transform) for part in ("train", "test")]
    top1, _ = knn_by_loop(*sides[0], *sides[1], k=5, temperature=0.07)
    assert found.references["untrained"]["knn_top1_k5"] == pytest.approx(top1, abs=1e-3)
    assert found.references["untrained"] != found.figures


def histogram_by_numpy(image: Image.Image) -> np.ndarray:
    """Square roots of the counts of 4 x 4 x 4 colours of what the network of `place` sees."""
    seen = CenterCrop(32)(Resize(36, antialias=True)(image))
    counts, _ = np.histogramdd(np.asarray(seen).reshape(-1, 3), bins=4, range=[(0, 256)] * 3)
    return np.sqrt(counts.ravel())


def pixels_by_hand(image: Image.Image) -> np.ndarray:
    seen = np.asarray(CenterCrop(32)(Resize(36, antialias=True)(image))) / 255
    return ((seen - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)).ravel()


@pytest.mark.parametrize(
    ("option", "name", "features"),
    [("--histogram", "colour_histogram", histogram_by_numpy), ("--pixels", "pixels", pixels_by_hand)],
)
def test_features_that_no_network_makes(
    place: Path, option: str, name: str, features: Callable[[Image.Image], np.ndarray]
) -> None:
    file = place / "out" / f"{name}.json"
    assert knn(place, option, "--out", str(file), "--quiet") == 0
    found = ResultRecord.read(file)

    def side(part: str) -> tuple[np.ndarray, list[str]]:
        files = sorted(each for each in (place / "data" / part).rglob("*") if each.is_file())
        rows = [features(Image.open(each).convert("RGB")) for each in files]
        return np.stack(rows), [each.parent.name for each in files]

    top1, _ = knn_by_loop(*side("train"), *side("test"), k=5, temperature=0.07)
    assert found.references[name]["knn_top1_k5"] == pytest.approx(top1, abs=1e-3)
    assert set(found.references) == {"majority", "chance", name}


def test_linear_heads_and_rankings_beside_the_same_references(place: Path) -> None:
    for words in (
        ["linear", "--epochs", "2", "--lr", "0.1", "--wd", "0"],
        ["linear", "--protocol", "resnet", "--epochs", "1"],
        ["retrieval"],
    ):
        file = place / "out" / "of_each.json"
        usual = ["--ckpt", str(place / "run"), "--data", str(place / "data"), "--no-cache", "--workers", "0"]
        references = ["--pixels", "--histogram", "--patches", "--untrained"]
        assert main([*words, *usual, *references, "--quiet", "--out", str(file), "--overwrite"]) == 0
        found = ResultRecord.read(file)
        without_network = {"pixels", "colour_histogram", "patches"}
        assert without_network | {"untrained"} <= set(found.references)
        assert all(set(found.references[name]) == set(found.figures) for name in without_network)


def test_patches_are_fitted_on_the_train_images_alone(place: Path) -> None:
    file = place / "out" / "patches.json"
    assert knn(place, "--patches", "--out", str(file), "--quiet") == 0
    train = scan_folder(place / "data" / "train")
    transform = Preprocessing(36, 32)
    layer: Any = patches.fitted(train, transform)
    sides = [features_by_loop(layer, place / "data" / part, transform) for part in ("train", "test")]
    top1, _ = knn_by_loop(*sides[0], *sides[1], k=5, temperature=0.07)
    found = ResultRecord.read(file)
    assert found.references["patches"]["knn_top1_k5"] == pytest.approx(top1, abs=1e-3)
    assert set(found.references) == {"majority", "chance", "patches"}
    options: dict[str, Any] = {"data": place / "data", "k": [5], "device": "cpu", "workers": 0, "quiet": True}
    python = excb.evaluate(place / "run", "knn", patches=True, **options)
    assert python.record.references["patches"] == found.references["patches"]


def test_references_without_a_network_need_one_row_an_image(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = ["--ckpt", str(place / "run"), "--data", str(place / "data"), "--no-cache"]
    assert main(["linear", *usual, "--protocol", "vit", "--histogram"]) == 2
    advice = "--protocol vit reads class tokens, and --histogram has none: use fast, logreg or logreg-cv"
    assert advice in capsys.readouterr().err


def test_colours_of_an_unknown_normalisation_are_not_counted(place: Path) -> None:
    network: Any = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    network.transform = Compose([CenterCrop(32), ToTensor()])
    task = Task.prepare(network, place / "data" / "train", place / "data" / "test", device="cpu", workers=0)
    assert task.baseline("pixels").backbone.width == 3072
    for name in ("colour_histogram", "patches"):
        with pytest.raises(UserError, match="does not say how it normalises colours"):
            task.baseline(name)


def test_the_twin_differs_in_its_weights_alone(place: Path) -> None:
    task = Task.prepare(
        str(place / "run"), place / "data" / "train", place / "data" / "test", device="cpu", workers=0, crop=20
    )
    twin = task.untrained()
    assert (twin.preprocessing, twin.train, twin.backbone.width) == (
        task.preprocessing,
        task.train,
        task.backbone.width,
    )
    ours, theirs = task.backbone.network.state_dict(), twin.backbone.network.state_dict()
    assert ours.keys() == theirs.keys()
    means = next(value for name, value in theirs.items() if name.endswith("running_mean"))
    assert float(means.abs().max()) > 0  # of the images, not of a new network


def test_an_untrained_checkpoint_gets_the_statistics_of_the_train_images(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = place / "out" / "conv4.json"
    assert knn(place, "--resize", "32", "--crop", "32", "--out", str(file), ckpt="untrained:conv4") == 0
    capsys.readouterr()
    found = ResultRecord.read(file)
    assert found.checkpoint["name"] == "untrained:conv4"
    assert "random weights, with the BatchNorm statistics of the train images" in found.notes
    backbone = excb.load("untrained:conv4")
    transform = replace(backbone.transform, resize=32, crop=32)
    estimate_batchnorm(backbone.network, scan_folder(place / "data" / "train"), transform)
    sides = [features_by_loop(backbone, place / "data" / part, transform) for part in ("train", "test")]
    top1, _ = knn_by_loop(*sides[0], *sides[1], k=5, temperature=0.07)
    assert found.figures["knn_top1_k5"] == pytest.approx(top1, abs=1e-3)


def test_figures_below_guessing_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    poor = replace(result({"knn_top1_k20": 40.0}), references={"majority": {"knn_top1_k20": 41.0}})
    assert below(poor) == [
        "knn_top1_k20 of 40.00 % is below the 41.00 % of always guessing the most frequent class: nothing was learned"
    ]
    assert below(replace(poor, references={"majority": {"knn_top1_k20": 40.0}})) == []
    print_references(poor, Reporter())
    out, err = capsys.readouterr()
    assert "40.00" in out
    assert "41.00" in out
    assert "chance" not in out
    assert "warning: knn_top1_k20 of 40.00 % is below" in err


def measured_hits(found: ResultRecord, hits: dict[str, Sequence[bool]]) -> Answered:
    """A result and its answers of images of class 0, of which some are taken for class 1."""
    values = {
        name.replace("top1", "{}"): torch.tensor([[int(not right)] for right in each]) for name, each in hits.items()
    }
    images = len(next(iter(hits.values())))
    names = [str(number) for number in range(images)]
    scored = Predictions(torch.zeros(images, dtype=torch.int64), names, ("cat", "dog"), values)
    figures = {name: 100 * sum(each) / images for name, each in hits.items()}
    return replace(found, figures=figures), scored


def test_the_strongest_reference_is_named_and_called_better_only_by_more_than_chance() -> None:
    found = result({"knn_top1_k20": 40.0})
    half, few = [True] * 50 + [False] * 50, [True] * 53 + [False] * 47
    made = measured_hits(found, {"knn_top1_k10": half, "knn_top1_k20": half})
    references = {
        "pixels": measured_hits(found, {"knn_top1_k10": [False] * 100, "knn_top1_k20": [False] * 100}),
        "colour_histogram": measured_hits(found, {"knn_top1_k10": few, "knn_top1_k20": few}),
        "patches": measured_hits(found, {"knn_top1_k10": half, "knn_top1_k20": [True] * 60 + [False] * 40}),
    }
    beside = with_references(made, references, main="knn_top1_k20")
    assert beside.references["patches"] == references["patches"][0].figures
    assert beside.notes[len(found.notes) :] == [
        "beside whitened patches with k-means, the strongest reference: better in knn_top1_k20 (60.00 against 50.00 "
        "%); no different within chance in knn_top1_k10 (50.00 against 50.00 %)",
        "beside colour histogram: no different within chance in knn_top1_k10 (53.00 against 50.00 %), knn_top1_k20 "
        "(53.00 against 50.00 %)",
    ]


def test_a_reference_without_answers_for_every_image_is_compared_by_its_figure() -> None:
    figures = {f"layers_{block}_top1": 10.0 for block in range(12)}
    sides = [(result({name: value + more for name, value in figures.items()}), None) for more in (0.0, 1.0)]
    (note,) = with_references(sides[0], {"untrained": sides[1]}, main="layers_0_top1").notes
    assert note.startswith("beside untrained, the strongest reference: better in layers_0_top1 (11.00 against 10.00 %)")
    assert note.endswith("and 9 more")
    assert with_references(sides[1], {"untrained": sides[0]}, main="layers_0_top1").notes == []


def test_another_checkpoint_is_a_reference_under_its_own_name(place: Path) -> None:
    write_run(place / "other", 7, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    out, other = place / "against.json", str(place / "other")
    assert knn(place, "--against", other, "--out", str(out)) == 0
    alone = place / "alone.json"
    assert knn(place, "--out", str(alone), ckpt=other) == 0
    assert ResultRecord.read(out).references[other] == ResultRecord.read(alone).figures


def test_the_head_is_blamed_where_neighbours_on_its_features_beat_guessing() -> None:
    figures = {"majority": {"linear_top1": 40.0}, "neighbours": {"linear_top1": 60.0}}
    (sentence,) = below(replace(result({"linear_top1": 22.0}), references=figures))
    assert sentence.endswith("always guessing the most frequent class: the head learned nothing")


def test_a_result_below_guessing_says_so_in_its_notes(place: Path) -> None:
    task = Task.prepare(str(place / "run"), place / "data" / "train", place / "data" / "test", device="cpu", workers=0)
    assert task.train.labels is not None
    labels = np.roll(task.train.labels, 5)
    images: Any = task.train
    shuffled = replace(task, train=replace(images, labels=labels))
    measured = measure(shuffled, KnnOptions(k=(1,)), Reporter(quiet=True))
    found, scored = measured.result, measured.scored
    worse = found.figures["knn_top1_k1"] < found.references["majority"]["knn_top1_k1"]
    assert worse == any("is below" in note for note in found.notes)
    assert torch.equal(scored.targets, torch.from_numpy(task.test.labels))


def test_results_without_references_are_read_and_written_as_before() -> None:
    old = result({"knn_top1_k20": 40.0})
    assert "references" not in json.loads(old.to_json())
    assert ResultRecord.from_json(old.to_json()) == old
    new = replace(old, references={"chance": {"knn_top1_k20": 1.0}})
    assert ResultRecord.from_json(new.to_json()) == new


def test_figures_that_guessing_nearly_reaches_are_doubted() -> None:
    found = nearly_by_chance({"chance": {"knn_top1": 33.3, "knn_top5": 100.0}, "majority": {"knn_top1": 90.0}})
    assert found.lines() == [
        "1 figure that guessing brings above 50 %, such as knn_top5 (100 %): a high figure says little"
    ]
    assert not nearly_by_chance({})


def test_corrupted_images_below_guessing_do_not_say_that_nothing_was_learned() -> None:
    figures = {"majority": {"robustness_corrupted_top1": 15.0, "robustness_clean_top1": 15.0}}
    found = replace(result({"robustness_corrupted_top1": 10.0, "robustness_clean_top1": 30.0}), references=figures)
    assert below(found) == [
        "robustness_corrupted_top1 of 10.00 % is below the 15.00 % of always guessing the most frequent class"
    ]


def test_what_is_warned_of_is_not_noted_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    poor = replace(result({"linear_top1": 40.0}), references={"majority": {"linear_top1": 41.0}})
    noted = replace(poor, notes=["a note", *below(poor)])
    tell_notes(noted, Reporter())
    assert capsys.readouterr().err == "a note\n"
    print_references(noted, Reporter())
    assert capsys.readouterr().err == f"warning: {below(poor)[0]}\n"
