"""Tests of the dense protocol: figures against a loop, references, files, processes, and the command's mistakes."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from excb.transfer.compare import compare_results
from excb.transfer.dense.layouts import folders
from excb.transfer.dense.layouts.masks import Split
from excb.transfer.dense.options import DenseOptions
from excb.transfer.dense.patches.metrics import Areas
from excb.transfer.dense.patches.views import nearest_pixels
from excb.transfer.dense.pictures import colours
from excb.transfer.dense.record import DENSE
from excb.transfer.dense.setup import DenseTask
from excb.transfer.leaderboard.submission import check_result
from excb.transfer.options import OwnSetOptions
from excb.transfer.protocol import Measurement
from excb.transfer.protocols import kind_of
from excb.transfer.runner import Evaluation
from tests.forked import launch
from tests.run_files import TINY_VIT, tiny_recipe, write_run
from tests.transfer.dense.masked_images import CLASSES, write_set
from tests.transfer.labelled_images import write_folder

pytestmark = pytest.mark.usefixtures("one_thread")
QUIET = Reporter(quiet=True)
SIDE = 64


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CNN, a ViT, and a set of small images."""
    place = tmp_path_factory.mktemp("dense")
    write_run(place / "cnn", 5, recipe=tiny_recipe())
    write_run(place / "vit", 5, recipe=tiny_recipe(TINY_VIT))
    write_set(place / "set", train=8, test=5)
    return place


CPU = torch.device("cpu")
References = Literal["untrained", "pixels"]


def evaluation(place: Path, run: str = "cnn", *references: References, **given: Any) -> Evaluation:
    """Of k-NN with three neighbours, unless `given` says otherwise."""
    own: dict[str, Any] = {"heads": ("knn",), "k": 3} | given
    asked: dict[str, Any] = dict.fromkeys(references, True)
    shared = OwnSetOptions(ckpt=place / run, device="cpu", batch_size=4, workers=0, no_cache=True, **asked)
    return Evaluation(DENSE, shared, DenseOptions(data=place / "set", **own))


def task(place: Path, run: str = "cnn", **given: Any) -> DenseTask:
    opened = evaluation(place, run, **given).open(CPU, QUIET)
    assert isinstance(opened, DenseTask)
    return opened


def measured(place: Path, run: str = "cnn", *references: References, **given: Any) -> Measurement:
    asked = evaluation(place, run, *references, **given)
    return asked.measure(asked.open(CPU, QUIET), QUIET)


def miou_by_loop(place: Path, run: str, *, k: int, temperature: float) -> tuple[float, float]:
    """k-NN of patches in float64, one at a time; every pixel counted by itself."""
    backbone = excb.load(place / run, features="map")
    splits: tuple[Split, ...] = ("train", "test")
    images = {split: folders.LAYOUT.open(place / "set", split) for split in splits}

    def patches(split: Split, index: int) -> torch.Tensor:
        image = images[split].open(index).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        with torch.no_grad():
            return backbone(backbone.transform(image)[None])[0].double()  # [D, h, w]

    bank, labels = [], []
    for index in range(len(images["train"])):
        maps, mask = patches("train", index), nearest_pixels(images["train"].mask(index), SIDE, SIDE)
        cell = SIDE // maps.shape[1]
        for row in range(maps.shape[1]):
            for column in range(maps.shape[2]):
                own = mask[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell]
                if (own >= 0).any():
                    bank.append(maps[:, row, column])
                    labels.append([float((own[own >= 0] == label).mean()) for label in range(3)])
    unit, shares = nn.functional.normalize(torch.stack(bank), dim=1), torch.tensor(labels, dtype=torch.float64)
    right, predicted, true = np.zeros((3, 3))
    for index in range(len(images["test"])):
        maps, mask = patches("test", index), images["test"].mask(index)
        scores = torch.zeros(1, 3, *maps.shape[1:], dtype=torch.float64)
        for row in range(maps.shape[1]):
            for column in range(maps.shape[2]):
                cosines = unit @ nn.functional.normalize(maps[:, row, column], dim=0)
                best = sorted(range(len(unit)), key=lambda place: (-float(cosines[place]), place))[:k]
                weights = torch.softmax(cosines[best] / temperature, 0)
                scores[0, :, row, column] = weights @ shares[best]
        whole = nn.functional.interpolate(scores, mask.shape, mode="bilinear", align_corners=False)[0].argmax(0).numpy()
        for guess, label in zip(whole[mask >= 0].tolist(), mask[mask >= 0].tolist(), strict=True):
            right[label] += guess == label
            predicted[guess] += 1
            true[label] += 1
    return 100 * float((right / (predicted + true - right)).mean()), 100 * right.sum() / true.sum()


@pytest.mark.parametrize("run", ["cnn", "vit"])
def test_figures_of_neighbours_are_those_of_a_loop(place: Path, run: str) -> None:
    result = measured(place, run, temperature=0.05).result
    miou, accuracy = miou_by_loop(place, run, k=3, temperature=0.05)
    assert result.figures == pytest.approx(
        {"dense_knn_miou": miou, "dense_knn_pixel_accuracy": accuracy}, abs=0.1
    )  # single pixels may be decided otherwise in float32
    assert 5 < miou < 100


def test_parts_seeds_and_references(place: Path) -> None:
    made = measured(place, "cnn", "untrained", "pixels", heads=("knn", "linear"), parts=(1, 4), seeds=(0, 1))
    result, areas = made.result, made.scored.runs
    runs = [f"{head}_{measure}{part}" for head, part in (("knn", ""), ("knn", "_1of4"), ("linear", ""))
            for measure in ("miou", "pixel_accuracy")]  # fmt: skip
    assert list(result.figures) == [f"dense_{run}" for run in runs]
    assert {run: len(seeds) for run, seeds in areas.items()} == {"knn": 1, "knn_1of4": 2, "linear": 2}
    assert result.references.keys() == {"majority", "untrained", "pixels"}
    assert all(values.keys() == result.figures.keys() for values in result.references.values())
    for name, (low, high) in result.intervals.items():
        assert low <= result.figures[name] <= high
    assert list(result.per_class["dense_knn_miou"]) == list(CLASSES)
    mean = np.mean([value for value in result.per_class["dense_knn_miou"].values() if value is not None])
    assert mean == pytest.approx(result.figures["dense_knn_miou"], abs=1e-3)
    true = areas["knn"][0].true.sum(0)
    assert result.references["majority"]["dense_knn_pixel_accuracy"] == pytest.approx(100 * true[0] / true.sum())
    assert result.references["majority"]["dense_knn_miou"] == pytest.approx(100 * true[0] / true.sum() / 3, abs=1e-4)


def test_raw_pixels_find_classes_that_are_colours(place: Path) -> None:
    result = measured(place, "cnn", "pixels", heads=("knn", "linear"), stride=8).result
    colour, majority = result.references["pixels"], result.references["majority"]
    assert colour["dense_knn_miou"] > 60 > 2 * majority["dense_knn_miou"]
    assert colour["dense_linear_miou"] > 60


def test_every_setting_that_changes_figures_is_in_the_hash(place: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"mode": "crop"},
        {"mode": "window", "resize": 80},
        {"mode": "window", "resize": 80, "step": 30},
        {"size": 96},
        {"mask_size": "input"},
        {"upsampling": "nearest"},
        {"interpolation": "bicubic"},
        {"stride": 16},
        {"k": 4},
        {"temperature": 0.1},
        {"memory": 64},
        {"seeds": (3,)},
    ]
    hashes = [measured(place, **given).result.protocol_hash for given in changes]
    assert len(set(hashes)) == len(hashes)
    assert measured(place).result.protocol_hash == hashes[0]


def test_matching_adds_a_figure_and_changes_no_other(place: Path) -> None:
    plain, matched = (measured(place, matching=matching).result for matching in ("none", "hungarian"))
    assert plain.figures.items() < matched.figures.items()
    assert set(matched.figures) - set(plain.figures) == {"dense_knn_miou_hungarian"}
    assert matched.figures["dense_knn_miou_hungarian"] > 0
    assert "matching" not in plain.settings
    assert matched.settings["matching"] == "hungarian"


def test_strides_are_those_of_the_network(place: Path) -> None:
    assert (task(place).grid.stride, task(place).grid.height) == (32, 2)
    assert (task(place, stride=8).grid.stride, task(place, stride=8).grid.height) == (8, 8)
    with pytest.raises(UserError, match=r"has no map of stride 5: its strides are .*8, 16, 32"):
        task(place, stride=5)


def test_areas_give_the_figures_again(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    assert main(command(place, file, "--heads", "knn", "linear", "logreg")) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.areas.json", "mine.json", "mine.masks.png"]
    result = ResultRecord.read(file)
    kept = json.loads((tmp_path / "mine.areas.json").read_text(encoding="utf-8"))
    assert (len(kept["images"]), kept["classes"]) == (5, list(CLASSES))
    for head in ("knn", "linear", "logreg"):
        table = np.zeros((3, 5, 3), np.int64)
        for image, own in enumerate(kept["areas"][head][0]):
            for label, values in own.items():
                table[:, image, int(label)] = values
        assert Areas(*table).miou() == pytest.approx(result.figures[f"dense_{head}_miou"], abs=1e-3)
    with Image.open(tmp_path / "mine.masks.png") as sheet:
        assert sheet.width > 5 * 200  # the image, its mask and three predictions
    check_result(file, ResultRecord.read(file))


def test_results_are_compared_image_by_image(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("a.json", "b.json")]
    assert main(command(place, files[0], "--heads", "knn", "linear")) == 0
    assert main(command(place, files[1], "--heads", "knn", "--stride", "8")) == 0
    found = compare_results(files[0], files[1], Reporter(quiet=True), table=False)
    results = [ResultRecord.read(file).figures["dense_knn_miou"] for file in files]
    figure = found["figures"]["dense_knn_miou"]
    assert list(found["figures"]) == ["dense_knn_miou"]
    assert [figure["first"], figure["second"]] == pytest.approx(results, abs=1e-3)
    assert any("stride" in warning for warning in found["warnings"])
    assert main(["compare", *map(str, files), "--figure", "dense_knn_pixel_accuracy"]) == 0
    assert "dense_knn_pixel_accuracy" in capsys.readouterr().out
    assert main(["compare", *map(str, files), "--figure", "dense_logreg_miou"]) == 2
    assert "has no predictions of dense_logreg_miou" in capsys.readouterr().err
    areas = tmp_path / "b.areas.json"
    areas.write_text(areas.read_text(encoding="utf-8") + " ", encoding="utf-8")
    assert main(["compare", *map(str, files)]) == 2
    assert "their sha256 differ" in capsys.readouterr().err
    areas.unlink()
    assert main(["compare", *map(str, files)]) == 2
    assert "keep both files together" in capsys.readouterr().err


def test_results_in_memory_are_compared_too(place: Path) -> None:
    options: dict[str, Any] = {"data": str(place / "set"), "workers": 0, "k": 3, "heads": ["knn"], "quiet": True}
    results = [excb.evaluate(place / "cnn", "dense", stride=stride, **options) for stride in (32, 8)]
    figure = excb.compare(*results)["figures"]["dense_knn_miou"]
    assert [figure["first"], figure["second"]] == pytest.approx(
        [result.figures["dense_knn_miou"] for result in results], abs=1e-3
    )
    with pytest.raises(UserError, match="makes no prediction for each image"):
        results[0].predictions()


def command(place: Path, file: Path | None, *words: str, run: str = "cnn") -> list[str]:
    usual = ["dense", "--ckpt", str(place / run), "--data", str(place / "set"), "--workers", "0", "--device", "cpu"]
    out = [] if file is None else ["--out", str(file)]
    return [*usual, "--no-cache", "--quiet", "--k", "3", *out, *words]


def test_two_processes_give_the_answer_of_one(place: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    words = ("--mode", "window", "--resize", "80", "--heads", "knn", "linear")
    assert main(command(place, one, *words)) == 0
    assert launch("excb.transfer.cli", command(place, two, *words), 2) == 0
    first, second = (ResultRecord.read(file) for file in (one, two))
    assert (first.figures, first.intervals, first.protocol_hash) == (
        second.figures,
        second.intervals,
        second.protocol_hash,
    )
    assert first.predictions["sha256"] == second.predictions["sha256"]


def test_features_are_kept(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in command(place, None) if word != "--no-cache"] + ["--cache", str(tmp_path / "cache")]
    assert main([*words, "--dry-run"]) == 0
    assert "train: 8 images, none cached" in capsys.readouterr().out
    assert main(words) == 0
    first = capsys.readouterr().out
    assert "knn miou" in first
    assert main([*words, "--dry-run"]) == 0
    assert "all features are cached" in capsys.readouterr().out
    assert main(words) == 0
    assert capsys.readouterr().out == first
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["protocol"] == "dense"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--settings", "dinov4"), "invalid choice: 'dinov4' (choose from"),
        (("--linear", "slow"), "invalid choice: 'slow' (choose from"),
        (("--layout", "cocoa"), "did you mean 'coco'"),
        (("--k", "0"), "--k 0: at least one neighbour votes"),
        (("--k", "5000"), "--k 5000: the memory has"),
        (("--parts", "8", "--k", "30"), "--k 30: the memory of --parts 8 has"),
        (("--parts", "9"), "1/9 of 8 images is none"),
        (("--temperature", "0"), "--temperature must be above 0"),
        (("--mode", "window", "--mask-size", "input"), "--mask-size input has no meaning for windows"),
        (("--resize", "80"), "--resize has no use with --mode resize: it is for crop and window"),
        (("--mode", "crop", "--step", "30"), "--step has no use with --mode crop"),
        (("--heads", "linear"), "--k is an option of the head knn: add it to --heads"),
        (("--logistic", "capi"), "--logistic is an option of the head logreg"),
        (("--mode", "crop", "--resize", "32"), "--resize 32 is below --size 64"),
        (("--stride", "7"), "has no map of stride 7"),
        (("--data", "nowhere"), "no folder nowhere"),
        (("--batch-size", "0"), "--batch-size must be at least 1"),
    ],
)
def test_mistakes_are_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(command(place, None, *words)) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("folder", ["test/images", "train/masks"])
def test_results_are_not_written_among_images_and_masks(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    root = write_set(tmp_path / "set", sizes=(48,))
    assert main(command(place, root / folder / "r.json", "--data", str(root))) == 2
    assert f"is among the images of {root / folder}" in capsys.readouterr().err
    assert not list(root.rglob("r.*"))
    assert main(command(place, root / "r.json", "--data", str(root))) == 0
    assert main(command(place, None, "--data", str(root))) == 0


def test_an_unreadable_image_stops_it(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_set(tmp_path / "set", sizes=(48,))
    with Image.open(root / "test" / "images" / "1.png") as image:
        image.save(root / "test" / "images" / "1.png")
    file = root / "test" / "images" / "1.png"
    file.write_bytes(file.read_bytes()[:600])
    assert main(command(place, None, "--data", str(root))) == 2
    assert "1 of 4 images in" in capsys.readouterr().err


def test_test_masks_without_a_class_are_refused(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_set(tmp_path / "set", sizes=(48,))
    for file in (root / "test" / "masks").rglob("*.png"):  # as where a benchmark keeps its answers
        with Image.open(file) as mask:
            blank = Image.new("L", mask.size, 255)
        blank.save(file)
    assert main(command(place, None, "--data", str(root))) == 2
    assert "no test image of" in capsys.readouterr().err


def test_from_python_by_name_and_by_backbone(place: Path) -> None:
    quick: dict[str, Any] = {"data": place / "set", "device": "cpu", "workers": 0, "no_cache": True, "quiet": True}
    named = excb.evaluate(place / "cnn", "dense", heads=["knn"], k=3, **quick)
    backbone = excb.load(place / "cnn").train()
    assert excb.evaluate(backbone, "dense", heads=["knn"], k=3, **quick).figures == named.figures
    assert backbone.training
    assert named.main == "dense_knn_miou"
    with pytest.raises(UserError, match=r"needs the maps of a backbone that excb.load gave"):
        excb.evaluate(nn.Flatten(), "dense", **quick)


def test_one_of_all_protocols(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split, seed in (("train", 1), ("test", 2)):
        write_folder(tmp_path / "data" / split, each=2, classes=("ant", "bee"), seed=seed)
    usual = ["--ckpt", str(place / "cnn"), "--data", str(tmp_path / "data"), "--workers", "0", "--device", "cpu"]
    words = ["all", *usual, "--no-cache", "--quiet", "--out", str(tmp_path / "out"), "--only", "dense"]
    assert main(words) == 2
    assert "name images and masks for it with --masks DIR" in capsys.readouterr().err
    assert main([*words, "--masks", str(place / "set")]) == 0
    assert (tmp_path / "out" / "dense.masks.png").is_file()
    assert main(["leaderboard", str(tmp_path / "out"), "--out", str(tmp_path / "board"), "--quiet"]) == 0
    text = (tmp_path / "board" / "leaderboard.md").read_text(encoding="utf-8")
    assert "| mIoU | pixel accuracy |" in text.partition("## Dense: k-NN of patches")[2].partition("\n## ")[0]


def test_options_of_all_reach_it_or_are_refused_by_name(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split, seed in (("train", 1), ("test", 2)):
        write_folder(tmp_path / "data" / split, each=2, classes=("ant", "bee"), seed=seed)
    usual = ["--ckpt", str(place / "cnn"), "--data", str(tmp_path / "data"), "--workers", "0", "--device", "cpu"]
    out, masks, cache = tmp_path / "out", ["--masks", str(place / "set")], tmp_path / "cache"
    words = ["all", *usual, "--quiet", "--out", str(out), "--only", "dense", *masks]
    for option in ("crop", "resize"):
        assert main([*words, "--dry-run", f"--{option}", "48"]) == 2
        assert capsys.readouterr().err == (
            f"excb-eval: error: dense has no --{option}: evaluate it alone with `excb-eval dense`\n"
        )
    other = ["--network", "student", "--feature-precision", "bf16", "--pixels", "--cache", str(cache)]
    assert main([*words, *other]) == 0
    made = ResultRecord.read(out / "dense.json")
    assert made.settings["feature_precision"] == made.checkpoint["feature_precision"] == "bf16"
    assert made.checkpoint["network"] == "student"
    assert "pixels" in made.references
    assert len(list(cache.rglob("description.json"))) == 2 or any(cache.rglob("*"))
    alone = tmp_path / "alone.json"
    assert main(["dense", *usual[:2], "--data", *masks[1:], *usual[4:], *other, "--quiet", "--out", str(alone)]) == 0
    assert ResultRecord.read(alone).figures == made.figures
    capsys.readouterr()
    assert main([*words, "--network", "student", "--dry-run", "--json"]) == 0
    (step,) = json.loads(capsys.readouterr().out)["plan"]
    assert (step["state"], step["why"]) == ("run", "--feature-precision changed")


def test_kinds_of_figures_and_their_fields() -> None:
    kind = kind_of("dense_knn_miou_1of8")
    assert kind is not None
    assert (kind.family, kind.metric, kind.settings) == ("dense_knn", "mIoU", (("part", "1/8"),))
    assert kind_of("dense_linear_miou_8") is None
    shared = {"layout": "voc", "stride": 16, "seeds": [0]}
    settings = shared | {"knn": {"k": 30}, "linear": {"recipe": "fast"}}
    assert DENSE.result_fields(settings, kind) == {"layout": "voc", "stride": 16, "k": 30, "part": "1/8"}


def test_colours_of_classes_differ() -> None:
    assert len({tuple(colour) for colour in colours(256).tolist()}) == 256
    assert colours(3).tolist() == [[0, 0, 0], [128, 0, 0], [0, 128, 0]]  # as in Pascal VOC
