"""Tests of `excb-eval`: results as table, JSON and file; every mistake one line and exit code 2."""

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import excb
from excb.transfer.cli import main
from tests.run_files import damage, tiny_recipe, write_run
from tests.transfer.labelled_images import features_by_loop, knn_by_loop, write_folder

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and images in every state."""
    place = tmp_path_factory.mktemp("cli")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_folder(place / "data" / "train", each=4, seed=1)
    write_folder(place / "data" / "test", each=2, seed=2)
    write_folder(place / "strange", each=1, classes=("ant", "yak", "zebu"))
    write_folder(place / "partly", each=1, classes=("ant", "bee", "yak"))
    write_folder(place / "broken", each=1, seed=2)
    (place / "broken" / "dog" / "0.png").write_bytes(b"no image")
    (place / "empty").mkdir()
    (place / "notes.txt").write_text("words", encoding="utf-8")
    (place / "damaged.pt").write_bytes((place / "run" / "checkpoints" / "step-5.pt").read_bytes())
    damage(place / "damaged.pt")
    return place


def evaluate(place: Path, *arguments: str) -> int:
    usual = [
        "knn",
        "--ckpt",
        str(place / "run"),
        "--workers",
        "0",
        "--device",
        "cpu",
        "--backend",
        "torch",
        "--no-cache",
    ]
    return int(main([*usual, *(argument.format(place=place) for argument in arguments)]))


def unplanned(err: str) -> str:
    """stderr without the line that plans the memory."""
    plan, rest = err[err.index("k-NN: bank") :].split("\n", 1)
    assert plan.endswith("GB")
    return err[: err.index("k-NN: bank")] + rest


def figures_by_loop(place: Path, k: int, test: str = "data/test") -> dict[str, Any]:
    backbone = excb.load(place / "run")
    bank, queries = features_by_loop(backbone, place / "data" / "train"), features_by_loop(backbone, place / test)
    top1, top5 = knn_by_loop(*bank, *queries, k=k, temperature=0.07)
    return {f"knn_top1_k{k}": pytest.approx(top1, abs=1e-4), f"knn_top5_k{k}": pytest.approx(top5, abs=1e-4)}


# ---------------------------------------------------------------------------------------------------------------------
# Results
# ---------------------------------------------------------------------------------------------------------------------


def test_json_on_stdout_and_nothing_else(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(place, "--data", "{place}/data", "--k", "5", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["figures"] == figures_by_loop(place, 5)
    assert unplanned(err) == ""


def test_default_numbers_of_neighbours_warn_on_stderr_only(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(place, "--data", "{place}/data", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["figures"] == figures_by_loop(place, 10) | figures_by_loop(place, 20)
    assert unplanned(err) == "warning: only 28 train images: k = 10, 20 instead of (10, 20, 100, 200)\n"
    assert evaluate(place, "--data", "{place}/data", "--json", "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_file_holds_what_the_table_and_json_show(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deep" / "knn.json"
    assert evaluate(place, "--data", "{place}/data", "--k", "1", "7", "--out", str(file)) == 0
    out, err = capsys.readouterr()
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    beside = [file, file.with_suffix(".npz"), file.with_name("knn.confusion.png")]
    assert unplanned(err) == f"wrote {', '.join(map(str, beside))}\n"
    assert all(each.is_file() for each in beside)
    figures = result["figures"]
    assert figures == figures_by_loop(place, 1) | figures_by_loop(place, 7)
    rows = [line.split() for line in out.splitlines()[2:4]]
    shown = [[row[0], row[1], row[-1]] for row in rows]
    assert shown == [[k, f"{figures[f'knn_top1_k{k}']:.2f}", f"{figures[f'knn_top5_k{k}']:.2f}"] for k in ("1", "7")]
    assert evaluate(place, "--data", "{place}/data", "--k", "1", "7", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    other = {"created": 0, "seconds": 0, "predictions": {}}
    assert again | other == result | other


def test_schema_of_the_file(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "knn.json"
    assert evaluate(place, "--data", "{place}/data", "--k", "1", "--out", str(file), "--quiet") == 0
    result = json.loads(file.read_text(encoding="utf-8"))
    assert set(result) == {
        "protocol",
        "ledger",
        "references",
        "figures",
        "settings",
        "checkpoint",
        "data",
        "seconds",
        "schema",
        "created",
        "environment",
        "intervals",
        "inference",
        "per_class",
        "notes",
        "predictions",
        "protocol_hash",
    }
    assert (result["schema"], result["protocol"]) == (2, "knn")
    assert result["settings"]["k"] == [1]
    assert result["settings"]["temperature"] == [0.07]
    assert set(result["checkpoint"]) == {
        "name",
        "source",
        "architecture",
        "network",
        "step",
        "epoch",
        "recipe",
        "pretraining",
        "preprocessing",
        "weights_sha256",
    }
    assert set(result["data"]) == {"train", "test", "classes", "unknown_classes"}
    assert result["data"]["train"]["images"] == 28
    assert len(result["data"]["test"]["fingerprint"]) == 64
    assert datetime.fromisoformat(result["created"]).tzinfo is not None
    assert result["environment"]["torch"]


def test_folders_by_name_and_other_test_folders(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(place, "--train", "{place}/data/train", "--test", "{place}/data/test", "--k", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["figures"] == figures_by_loop(place, 3)
    assert evaluate(place, "--data", "{place}/data", "--test", "{place}/data/train", "--k", "1", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["figures"]["knn_top1_k1"] == 100
    assert result["data"]["test"]["root"] == str(place / "data" / "train")


def test_folder_val_stands_in_for_test(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(place / "data" / "train", tmp_path / "train")
    shutil.copytree(place / "data" / "test", tmp_path / "val")
    assert evaluate(place, "--data", str(tmp_path), "--k", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["figures"] == figures_by_loop(place, 3)


def test_options_reach_the_protocol(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--network", "student", "--resize", "50", "--crop", "24", "--temperature", "0.2", "--batch-size", "3")
    assert evaluate(place, "--data", "{place}/data", "--k", "2", "--json", *options) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["checkpoint"]["network"] == "student"
    preprocessing = result["checkpoint"]["preprocessing"]
    assert (preprocessing["resize"], preprocessing["crop"]) == (50, 24)
    assert result["settings"]["temperature"] == [0.2]


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes
# ---------------------------------------------------------------------------------------------------------------------

DATA = ("--data", "{place}/data")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name the images with --data DIR"),
        (("--train", "{place}/data/train"), "name the images with --data DIR"),
        (("--data", "{place}/nothing"), "no folder {place}/nothing"),
        (("--data", "{place}/empty"), "no folder {place}/empty/train"),
        ((*DATA, "--test", "{place}/nothing"), "no folder {place}/nothing"),
        ((*DATA, "--test", "{place}/empty"), "no image below {place}/empty"),
        ((*DATA, "--test", "{place}/strange"), "most images in {place}/strange are of classes that {place}/data/train"),
        ((*DATA, "--rename", "ant"), "--rename ant: write TEST=TRAIN"),
        ((*DATA, "--test", "{place}/data/test/ant"), "{place}/data/test/ant has no classes"),
        ((*DATA, "--train", "{place}/data/train/ant"), "{place}/data/train/ant has no classes"),
        ((*DATA, "--test", "{place}/broken"), "1 of 7 images in {place}/broken cannot be read, such as dog/0.png"),
        ((*DATA, "--train", "{place}/broken", "--k", "1"), "1 of 7 images in {place}/broken cannot be read"),
        ((*DATA, "--ckpt", "{place}/nothing"), "no checkpoint {place}/nothing"),
        ((*DATA, "--ckpt", "{place}/notes.txt"), "{place}/notes.txt is not a checkpoint"),
        ((*DATA, "--ckpt", "{place}/damaged.pt"), "{place}/damaged.pt is damaged"),
        ((*DATA, "--k", "0"), "--k 0 is out of range: there are 28 train images to vote"),
        ((*DATA, "--k", "5", "29"), "--k 29 is out of range: there are 28 train images to vote"),
        ((*DATA, "--k", "many"), "argument --k: invalid int value: 'many'"),
        ((*DATA, "--temperature", "0"), "--temperature must be above 0"),
        ((*DATA, "--temperature", "nan"), "--temperature must be above 0"),
        ((*DATA, "--temperature", "inf"), "--temperature must be above 0"),
        ((*DATA, "--resize", "0"), "--resize"),
        ((*DATA, "--crop", "40", "--resize", "30"), "--crop"),
        ((*DATA, "--batch-size", "0"), "--batch-size must be at least 1"),
        ((*DATA, "--batch-size", "x"), "argument --batch-size: takes a number, or auto, not 'x'"),
        ((*DATA, "--device", "gpu"), "device 'gpu' cannot be used here"),
        ((*DATA, "--backend", "annoy"), "invalid choice: 'annoy'"),
        ((*DATA, "--network", "both"), "invalid choice: 'both'"),
        ((*DATA, "--out", "{place}"), "--out {place} is a folder: name a file"),
        (
            (*DATA, "--k", "1", "--out", "{place}/notes.txt/knn.json"),
            "cannot write in {place}/notes.txt: Not a directory",
        ),
        ((*DATA, "--epochs", "3"), "unrecognized arguments: --epochs 3"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert evaluate(place, "--quiet", "--json", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("excb-eval: error: ")
    assert err.count("\n") == 1
    assert words.format(place=place) in err


@pytest.mark.parametrize("arguments", [["k-nn"], ["knn", "--data", "x"], ["--nonsense"]])
def test_wrong_command_is_one_line_that_points_to_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--help`)" in err


@pytest.mark.parametrize(("command", "words"), [("clusters", "Assign images to clusters"), ("semisup", "1 % or 10 %")])
def test_help_of_a_command_says_what_it_does(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert words in capsys.readouterr().out.partition("options:")[0]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"excb {excb.__version__}\n"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("knn --k 1", "counted as wrong"),
        ("linear --protocol logreg", "counted as wrong"),
        ("retrieval", "left out"),
        ("retrieval --gallery test", ""),  # where train has no say
    ],
)
def test_an_unknown_class_is_noted_once(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, what: str
) -> None:
    test = write_folder(tmp_path / "test", each=2, classes=("ant", "bee", "yak"))
    line = f"{words} --ckpt {place / 'run'} --workers 0 --device cpu --no-cache --train {place / 'data' / 'train'}"
    for quiet in ([], ["--quiet"]):
        assert main([*line.split(), "--test", str(test), *quiet]) == 0
        said = "".join(capsys.readouterr())
        assert said.count("no train image is of class yak") == bool(what)
        assert f"class yak: 2 test images {what}" in said or not what
        if what == "left out":
            assert "no image of the same class" not in said


def test_images_of_an_unknown_class_count_as_wrong(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*DATA, "--test", "{place}/partly", "--k", "1", "--json"]
    assert evaluate(place, *arguments) == 0
    said = capsys.readouterr()
    assert "no train image is of class yak: 1 test image counted as wrong" in said.err
    result = json.loads(said.out)
    assert result["data"]["unknown_classes"] == {"yak": 1}
    note = "no train image is of class yak: 1 test image counted as wrong"
    assert note in result["notes"]
    assert evaluate(place, *arguments, "--quiet") == 0
    assert note in json.loads(capsys.readouterr().out)["notes"]
    assert evaluate(place, *arguments[:-1], "--quiet") == 0
    said = capsys.readouterr()
    assert (said.out.splitlines()[-1], said.err) == (note, "")
    unknown = result["figures"]["knn_top1_k1"]
    assert evaluate(place, *DATA, "--test", "{place}/partly", "--k", "1", "--json", "--rename", "yak=ant") == 0
    renamed = json.loads(capsys.readouterr().out)
    assert renamed["data"]["unknown_classes"] == {}
    assert unknown <= min(renamed["figures"]["knn_top1_k1"], 200 / 3 + 1e-3)
