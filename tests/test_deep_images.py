"""Every command that reads a user's images takes those of more than 8 bits, on one mapping that may be declared."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from excb.cli import Parser
from excb.console import Reporter
from excb.errors import UserError
from excb.images.image_set import CLIPPED, Images
from excb.images.pixels import pixels_of
from excb.images.scanning import find_images, scan_folder
from excb.ledger import NAMED, Ledger
from excb.pretrain.__main__ import NAMES, program
from excb.pretrain.__main__ import main as pretrain
from excb.pretrain.loop import run_training
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan import choice
from excb.transfer.cli import COMMANDS as EVALUATIONS
from excb.transfer.cli import main as evaluate
from excb.transfer.cli import program as evaluations
from excb.transfer.detection import task as detection_task
from excb.transfer.protocols import PROTOCOLS
from excb.transfer.robustness.ready import Ready
from excb.transfer.runner import of_python
from tests.forked import launch
from tests.pretrain.small_runs import OVERRIDES, write_images
from tests.run_files import tiny_recipe, write_run
from tests.transfer.dense.masked_images import write_set
from tests.transfer.detection.test_command import checkpoint
from tests.transfer.labelled_images import write_folder
from tests.transfer.tiny_coco import write_coco

pytestmark = pytest.mark.usefixtures("one_thread")
SCALE = 16  # of stored values: images of 8 bits times this, in 16
RANGE = f"0..{255 * SCALE}"
QUIET = Reporter(quiet=True)


def deepen(folder: Path, *, bands: int = 0) -> None:
    """Store the images below a folder in 16 bits, or as so many bands. Pillow knows a TIFF whatever its name is."""
    for path in find_images(folder)[0]:
        if "masks" in path:
            continue
        values = np.asarray(Image.open(folder / path).convert("RGB"))
        if bands:
            tifffile.imwrite(
                folder / path, values.repeat(bands, 2)[..., :bands], photometric="minisblack", planarconfig="contig"
            )
        else:
            tifffile.imwrite(folder / path, values.astype(np.uint16) * SCALE, photometric="rgb")


def write_pairs(root: Path) -> None:
    write_folder(root / "references", each=3, classes=("ant", "bee"), seed=1)
    for number, file in enumerate(sorted((root / "references").rglob("*.png"))):
        file.rename(root / "references" / f"{number}.png")
        (root / "queries").mkdir(exist_ok=True)
        Image.open(root / "references" / f"{number}.png").rotate(5).save(root / "queries" / f"q{number}.png")
    (root / "ground_truth.csv").write_text("q0,0\nq1,1\n")


def write_all(place: Path) -> None:
    """A set for each way in which protocols take images."""
    write_run(place / "run", 5, recipe=tiny_recipe())
    for part, seed in (("train", 1), ("test", 2)):
        write_folder(place / "labelled" / part, each=4, classes=("ant", "bee"), seed=seed)
    write_set(place / "masked", train=4, test=3)
    write_pairs(place / "pairs")
    write_coco(place / "coco")


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shallow")
    write_all(place)
    return place


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("deep")
    write_all(place)
    deepen(place)
    return place


@pytest.fixture(scope="module")
def banded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("banded")
    write_all(place)
    deepen(place, bands=5)
    return place


# Where each protocol's images are; those that are not named are labelled.
DATA = {"dense": "masked", "instances": "pairs", "detection": "coco", "clusters": "labelled/train"}
COLOURS_ONLY = ("dense", "instances", "detection")
OWN: dict[str, dict[str, Any]] = {"robustness": {"corruptions": ("none",)}, "semisup": {"percent": 10.0}}


def opened(place: Path, name: str, **given: Any) -> dict[str, Images]:
    usual: dict[str, Any] = {"device": "cpu", "workers": 0, "no_cache": True} if name != "detection" else {"workers": 0}
    data = place / DATA.get(name, "labelled")
    values = usual | {"ckpt": place / "run", "data": str(data) if name not in COLOURS_ONLY else data} | given
    task = of_python(PROTOCOLS[name], values | OWN.get(name, {})).open(torch.device("cpu"), QUIET)
    return dict(task.sets)


@pytest.fixture(autouse=True)
def any_resnet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection_task, "load", lambda _name, network: checkpoint())


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_maps_a_declared_range(shallow: Path, deep: Path, name: str) -> None:
    expected, found = opened(shallow, name), opened(deep, name, range=RANGE)
    assert found.keys() == expected.keys()
    for part, images in found.items():
        assert pixels_of(images).range == RANGE
        for index in range(len(images)):
            np.testing.assert_array_equal(np.asarray(images.open(index)), np.asarray(expected[part].open(index)))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_measures_a_range_that_nobody_declares(deep: Path, name: str) -> None:
    assert {pixels_of(images).origin for images in opened(deep, name).values()} == {"measured"}


@pytest.mark.parametrize("name", COLOURS_ONLY)
def test_protocols_of_colours_refuse_other_channels_and_name_no_option_that_they_lack(banded: Path, name: str) -> None:
    with pytest.raises(
        UserError, match=f"{name} takes grey and colour images, and .* have 5 channels .such as"
    ) as refused:
        opened(banded, name)
    assert "--channels" not in str(refused.value)


# Commands of excb-eval that open no images of a user, and why.
WITHOUT_IMAGES = {
    "compare": "results",
    "leaderboard": "results",
    "cache": "features",
    "reproduce": "the images of published figures, which have 8 bits",
}


def flags(program: Parser, name: str) -> set[str]:
    """The options of a command."""
    (commands,) = [each for each in program._actions if isinstance(each, argparse._SubParsersAction)]
    return {flag for action in commands.choices[name]._actions for flag in (*action.option_strings, action.dest)}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_every_command_of_excb_eval_that_reads_images_has_the_option(name: str) -> None:
    assert ("--range" in flags(evaluations([name]), name)) == (name not in WITHOUT_IMAGES)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_of_excb_pretrain_that_reads_images_has_the_option(name: str) -> None:
    own = flags(program(), name)
    kinds = flags_of_kinds() if name == "draw" else own
    if "--data" in kinds and name != "quickstart":
        assert "--range" in kinds or "overrides" in own


def flags_of_kinds() -> set[str]:
    """The options of `draw tsne`, the only figure of images."""
    (commands,) = [each for each in program()._actions if isinstance(each, argparse._SubParsersAction)]
    (kinds,) = [each for each in commands.choices["draw"]._actions if isinstance(each, argparse._SubParsersAction)]
    return {flag for action in kinds.choices["tsne"]._actions for flag in action.option_strings}


def figures_of(result: dict[str, Any]) -> Any:
    return {name: value for name, value in result["figures"].items() if not name.startswith("near")}


def test_sets_overlap_and_embed_give_the_figures_of_8_bits(shallow: Path, deep: Path, tmp_path: Path) -> None:
    made = {}
    for place, declared in ((shallow, []), (deep, ["--range", RANGE])):
        out, data = tmp_path / place.name, place / "labelled"
        usual = ["--device", "cpu", "--workers", "0", "--no-cache", "--quiet", *declared]
        own = ["--ckpt", str(place / "run"), *usual]
        few = ["--episodes", "2", "--shots", "1", "--k", "2"]
        assert evaluate(["sets", "--set", f"mine={data}", *own, *few, "--out", str(out / "sets")]) == 0
        both = ["--train", str(data / "train"), "--test", str(data / "test")]
        assert (
            evaluate(["overlap", *both, "--bits", "4", "--calibrate", "0", *usual, "--out", str(out / "o.json")]) == 0
        )
        assert evaluate(["embed", "--data", str(data / "train"), *own, "--out", str(out / "e.npz")]) == 0
        results = sorted((out / "sets").rglob("mine.json"))
        assert results
        made[place] = (
            [figures_of(json.loads(file.read_text())) for file in results],
            figures_of(json.loads((out / "o.json").read_text())),
            np.load(out / "e.npz")["vectors"],
        )
    first, second = made.values()
    assert first[:2] == second[:2]
    np.testing.assert_array_equal(first[2], second[2])


def test_robustness_maps_other_sets_too(shallow: Path, deep: Path) -> None:
    for place, given in ((shallow, {}), (deep, {"range": RANGE})):
        options = {"corruptions": ("none",), "also": (str(place / "labelled" / "test"),)} | given
        values = {
            "ckpt": place / "run",
            "data": str(place / "labelled"),
            "device": "cpu",
            "workers": 0,
            "no_cache": True,
        }
        task = of_python(PROTOCOLS["robustness"], values | options).open(torch.device("cpu"), QUIET)
        ready = Ready.of(task, of_python(PROTOCOLS["robustness"], values | options).own)
        pictures = np.asarray(ready.others[0].images.open(0))
        expected = np.asarray(Image.open(shallow / "labelled/test" / ready.others[0].images.paths[0]))
        np.testing.assert_array_equal(pictures, expected)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Deep images with a held-out split."""
    folder = write_images(tmp_path / "photos" / "train", classes=2, each=16).parent
    write_images(folder / "val", classes=2, each=3)
    deepen(folder)
    return folder


def test_commands_before_a_run_take_deep_images(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_images_per_second", lambda *_arguments: 100.0)
    data, declared = ["--data", str(photos)], f"data.range={RANGE}"
    assert pretrain(["plan", "quickstart", *data, *OVERRIDES, declared]) == 0
    assert f"mapped from the declared {RANGE}" in printed(capsys)
    assert pretrain(["doctor", *data]) in (0, 1)
    assert "16-bit colour" in printed(capsys)
    assert pretrain(["choose", "--no-pilots", *data, "--gpus", "0", "--range", RANGE]) == 0
    assert declared in printed(capsys)
    assert pretrain(["study", "balancers", *data, "--dry-run", *OVERRIDES, declared, "--out", str(tmp_path / "s")]) == 0
    assert f"mapped from the declared {RANGE}" in printed(capsys)
    assert pretrain(["shrink", *data, "--side", "20", "--out", str(tmp_path / "small")]) == 0
    assert "mapped from" in printed(capsys)
    copies = scan_folder(tmp_path / "small")
    assert {np.asarray(Image.open(copies.file(index))).shape for index in range(len(copies))} == {(20, 20, 3)}


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """All that a command has printed, in one line."""
    both = capsys.readouterr()
    return " ".join((both.out + both.err).split())


def test_a_run_measures_held_out_images_and_draws_them_on_its_range(photos: Path, tmp_path: Path) -> None:
    out, own = tmp_path / "run", [f"data.range={RANGE}", f"monitor.data={photos}", "optim.epochs=1"]
    recipe = apply(find_recipe("quickstart"), [*OVERRIDES, *own])
    assert run_training(recipe, scan_folder(photos / "train"), out, QUIET, table=False, verdict=False) == 0
    best = json.loads((out / "report.json").read_text())["best"]
    assert any(name.startswith("target") for name in best)
    tsne = ["draw", "tsne", str(out), "--data", str(photos), "--classes", "class0", "class1", "--each", "4"]
    assert pretrain([*tsne, "--range", RANGE, "--out", str(tmp_path / "tsne.png")]) == 0


# ---------------------------------------------------------------------------------------------------------------------
# Values outside the range, on two ranks: each reads its own images
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """16-bit pictures of two classes, a third of which leave 0..4080, and a run."""
    write_run(tmp_path / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    for part, seed in (("train", 1), ("test", 2)):
        write_folder(tmp_path / part, each=6, classes=("ant", "bee"), seed=seed)
        deepen(tmp_path / part)
        for file in sorted((tmp_path / part).rglob("[14].png")):
            tifffile.imwrite(file, np.full((40, 40), 5000, np.uint16) + np.arange(40, dtype=np.uint16) * seed)
    return tmp_path


MARKED = ("ant/1.png", "ant/4.png", "bee/1.png", "bee/4.png")


def marked(ledger: dict[str, Any]) -> dict[str, tuple[int, tuple[str, ...]]]:
    found = [entry for entry in Ledger.from_dict(ledger).entries if entry.reason == CLIPPED]
    return {entry.of: (entry.count, entry.names) for entry in found}


def test_an_evaluation_counts_the_images_outside_that_any_rank_read(outside: Path) -> None:
    file = outside / "two.json"
    words = ["--ckpt", str(outside / "run"), "--data", str(outside), "--range", RANGE, "--k", "1", "--out", str(file)]
    usual = ["--batch-size", "1", "--workers", "0", "--device", "cpu", "--no-cache", "--quiet"]
    assert launch("excb.transfer.cli", ["knn", *words, *usual], 2) == 0
    expected = (len(MARKED), MARKED[:NAMED])
    assert marked(json.loads(file.read_text())["ledger"]) == {"train": expected, "test": expected}


@pytest.mark.usefixtures("short_end")
def test_a_run_counts_the_images_outside_that_any_rank_read(outside: Path) -> None:
    settings = [
        *OVERRIDES,
        f"data.range={RANGE}",
        "optim.epochs=1",
        "optim.batch=4",
        "method.clusters=4",
        "monitor.images=4",
    ]
    words = ["quickstart", "--data", str(outside / "train"), "--out", str(outside / "made"), "--quiet", *settings]
    assert launch("excb.pretrain", words, 2) == 0
    assert marked(json.loads((outside / "made" / "report.json").read_text())["ledger"]) == {
        "": (len(MARKED), MARKED[:NAMED])
    }
