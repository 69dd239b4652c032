"""Every command of `excb-eval`: files, tables, cache, plans, and the same answer in many processes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from excb.images.scanning import scan_folder
from excb.transfer.cli import main
from tests.forked import launch
from tests.run_files import TINY_VIT, tiny_recipe, write_run
from tests.transfer.labelled_images import write_folder

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, and 33 train and 17 test images of seven classes: sizes that divide by none."""
    place = tmp_path_factory.mktemp("commands")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_run(place / "vit", 5, recipe=tiny_recipe(TINY_VIT, eval_resize=32, eval_crop=32))
    write_folder(place / "data" / "train", each=5, seed=1)
    write_folder(place / "data" / "test", each=3, seed=2)
    for name in ("train/ant/0.png", "train/bee/1.png", "test/ant/0.png", "test/cat/1.png", "test/dog/1.png"):
        next((place / "data" / name).parent.glob(f"{Path(name).stem}.*")).unlink()
    return place


def command(place: Path, name: str, *arguments: str, run: str = "run") -> list[str]:
    usual = ["--ckpt", str(place / run), "--data", str(place / "data"), "--workers", "0", "--device", "cpu", "--quiet"]
    return [name, *usual, *arguments]


PROTOCOLS = {
    "knn": ("knn", "--k", "5"),
    "fast": ("linear", "--epochs", "3"),
    "logreg": ("linear", "--protocol", "logreg"),
    "resnet": ("linear", "--protocol", "resnet", "--epochs", "2", "--train-batch", "16"),
    "semisup": ("semisup", "--percent", "10", "--epochs", "2", "--train-batch", "4", "--seeds", "0", "1"),
    "frozen": ("semisup", "--percent", "10", "--frozen"),
    "finetune": ("finetune", "--fraction", "0.5", "--epochs", "2", "--train-batch", "8"),
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_writes_result_predictions_and_picture(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = tmp_path / f"{name}.json"
    assert main(command(place, *PROTOCOLS[name], "--out", str(file))) == 0
    assert "%" in capsys.readouterr().out
    result = json.loads(file.read_text())
    first = next(iter(result["figures"]))
    assert "_top1" in first
    with np.load(tmp_path / f"{name}.npz") as arrays:
        assert len(arrays["targets"]) == 18
    assert file.with_name(f"{name}.confusion.png").read_bytes().startswith(b"\x89PNG")
    low, high = result["intervals"][first]
    assert 0 <= low <= high <= 100
    assert set(result["per_class"][first]) == {"ant", "bee", "cat", "dog", "eel", "fox", "gnu"}


@pytest.mark.parametrize("name", ["knn", "fast", "finetune"])
def test_two_processes_give_the_answer_of_one(place: Path, tmp_path: Path, name: str) -> None:
    results: list[dict[str, Any]] = []
    for processes in (1, 2):
        file = tmp_path / f"{processes}.json"
        arguments = command(place, *PROTOCOLS[name], "--no-cache", "--out", str(file), run="vit")
        assert (main(arguments) if processes == 1 else launch("excb.transfer.cli", arguments, 2)) == 0
        results.append(json.loads(file.read_text()))
    assert results[0]["figures"] == results[1]["figures"]
    assert results[0]["protocol_hash"] == results[1]["protocol_hash"]
    assert results[0]["predictions"]["sha256"] == results[1]["predictions"]["sha256"]


def test_a_mistake_in_many_processes_is_told_once(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch("excb.transfer.cli", command(place, "linear", "--lr", "-1"), 2) == 2
    assert capfd.readouterr().err.count("--lr must be above 0") == 1


DRY_RUNS = {
    ("knn", "--k", "5", "--backend", "torch"): "5 neighbours of each test image among the train images, by torch",
    ("retrieval", "--gallery", "test"): "rankings of the test images for each test image",
    ("linear", "--protocol", "fast"): "50 heads on these features for 30 epochs",
    ("linear", "--protocol", "logreg", "--C", "1", "2"): "logistic regressions on these features: 3",  # and the refit
    ("linear", "--protocol", "resnet"): (
        "1 head for 100 epochs, each of 33 new crops of the train images through the network; none of it is cached"
    ),
    ("semisup", "--percent", "10", "--seeds", "0", "1", "--epochs", "3"): (
        "2 trainings of all weights, 3 epochs of 7 train images (stratified, seed 0), and the test images through each "
        "network; none of it is cached"
    ),
    ("semisup", "--percent", "10", "--frozen"): (
        "a logistic regression on the features of 7 train images (stratified, seed 0)"
    ),
    ("finetune", "--fraction", "0.5"): (
        "1 training of all weights, 50 epochs of 16 train images (stratified, seed 0), and the test images through "
        "each network; none of it is cached"
    ),
}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("knn", "--k", "99"), "--k 99 is out of range"),
        (("knn", "--temperature", "0"), "--temperature must be above 0"),
        (("linear", "--lr", "-1"), "--lr must be above 0"),
        (("linear", "--protocol", "fats"), "did you mean 'fast'"),
        (("linear", "--protocol", "fast", "--C", "1"), "--C is of logreg"),
        (("linear", "--protocol", "logreg", "--C", "0"), "--C must be above 0"),
        (("linear", "--protocol", "vit"), "only ViTs have class tokens"),
        (("semisup", "--percent", "10", "--split-file", "{names}"), "1 of 1 name of"),
        (("finetune", "--split-file", "{names}"), "1 of 1 name of"),
        (("finetune", "--fraction", "2"), "--fraction 2"),
        (("finetune", "--seeds", "1", "1"), "none twice"),
        (("finetune", "--epochs", "0"), "epochs, batch and micro-batches must be at least 1"),
        (("semisup", "--percent", "10", "--frozen", "--seeds", "0", "1"), "give one seed"),
        (("features", "--out", "{names}"), "ends in .npz"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("ant/nowhere.png\n", encoding="utf-8")
    messages = []
    for dry in ((), ("--dry-run",)):
        arguments = command(place, *(word.format(names=names) for word in words), *dry)
        assert main([*arguments, "--cache", str(tmp_path / "cache")]) == 2
        messages.append(capsys.readouterr().err)
    assert told in messages[0]
    assert messages[0] == messages[1]


def test_features_are_kept_shared_and_exported(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = ("--cache", str(tmp_path / "cache"))
    assert main(command(place, "features", "--out", str(tmp_path / "f.npz"), "--json", *cache)) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"file": str(tmp_path / "f.npz"), "kind": "pooled", "train": 33, "test": 18}
    with np.load(tmp_path / "f.npz") as arrays:
        assert arrays["train_rows"].shape == (33, 32)
        assert len(arrays["test_names"]) == 18
    capsys.readouterr()
    assert main(["cache", *cache]) == 0
    assert "33" in capsys.readouterr().out
    assert main(["cache", *cache, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert sorted(entry["images"] for entry in listed["features"]) == [18, 33]
    assert listed["unfinished"] == []
    assert main(command(place, "knn", "--dry-run", *cache)) == 0
    assert "no image passes through the network" in capsys.readouterr().out
    for words, line in DRY_RUNS.items():
        assert main(command(place, *words, "--dry-run", *cache, run="run")) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("it can run: about ")
        assert line in lines
        through = "train images" in line and "neighbours" not in line and "features" not in line
        assert lines[-1].startswith("estimate: " if through or "the share" in lines[1] else "no image passes"), lines
    assert main(["cache", *cache, "--clear"]) == 0
    capsys.readouterr()
    assert main(command(place, "knn", "--dry-run", *cache)) == 0
    assert "estimate:" in capsys.readouterr().out
    assert main(["cache", "--cache", str(tmp_path / "nowhere")]) == 2
    assert "--cache names the one that keeps features" in capsys.readouterr().err


def test_compare_says_whether_a_difference_is_real(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / f"{run}.json") for run in ("run", "vit")]
    for run, file in zip(("run", "vit"), files, strict=True):
        assert main(command(place, *PROTOCOLS["knn"], "--out", file, run=run)) == 0
    capsys.readouterr()
    assert main(["compare", *files, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["figures"]["knn_top1_k5"]
    assert found["difference"] == pytest.approx(found["second"] - found["first"], abs=1e-3) or found[
        "difference"
    ] == pytest.approx(found["first"] - found["second"], abs=1e-3)
    assert 0 <= found["p_value"] <= 1
    assert main(["compare", *files]) == 0
    assert "knn_top1_k5" in capsys.readouterr().out
    assert main(["compare", files[0], str(tmp_path / "nothing.json")]) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("semisup", "--percent", "10", "--frozen", "--epochs", "3"), "which has no --epochs: leave it out"),
        (("semisup", "--percent", "10", "--frozen", "--head-lr", "1"), "which has no --head-lr: leave it out"),
        (("finetune", "--fraction", "0.5", "--split-file", "names.txt"), "so --fraction has no use: leave one out"),
        (("linear", "--protocol", "resnet", "--state", "."), "is a folder: name a file in it"),
    ],
)
def test_options_without_use_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    assert main(command(place, *words)) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (("knn", "--k", "5"), "data/test/knn.json"),
        (("linear", "--epochs", "1"), "data/train/results/linear.json"),
        (("all", "--only", "knn"), "data/train/report"),
    ],
)
def test_results_among_the_images_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], out: str
) -> None:
    assert main(command(place, *words, "--out", str(place / out))) == 2
    err = capsys.readouterr().err
    assert "name a place outside that folder" in err
    assert err.count("\n") == 1
    assert not (place / out).exists()


def test_pictures_of_results_beside_train_and_test_are_not_counted_with_their_images(
    place: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(place / "data", tmp_path / "data")
    known = list(scan_folder(data).paths)
    for words in (
        ("knn", "--k", "5"),
        ("linear", "--epochs", "1"),
        ("layers", "--probe", "knn", "--poolings", "mean"),
        ("robustness", "--corruptions", "contrast", "--severities", "1", "--l2", "0.1"),
        ("clusters", "--k", "3"),
    ):
        images = data / "train" if words[0] == "clusters" else data
        usual = ["--ckpt", str(place / "run"), "--data", str(images), "--workers", "0", "--device", "cpu", "--no-cache"]
        assert main([*words, *usual, "--quiet", "--out", str(data / f"{words[0]}.json")]) == 0
    drawn = sorted(
        str(file.relative_to(data)) for file in data.rglob("*.png") if str(file.relative_to(data)) not in known
    )
    assert len(drawn) == 6  # of layers two
    assert list(scan_folder(data).paths) == known


def test_the_vits_protocol_needs_a_vit(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(place, "linear", "--protocol", "vit", "--epochs", "1")) == 2
    err = capsys.readouterr().err
    assert err.startswith("excb-eval: error: ")
    assert err.count("\n") == 1
