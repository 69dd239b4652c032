"""Typical mistakes at the command line: each one clear message, exit code 2, and nothing lost."""

import contextlib
import hashlib
from pathlib import Path

import pytest

from excb.pretrain.__main__ import main as pretrain
from excb.transfer.cli import main as evaluate
from excb.zoo.__main__ import main as zoo
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import write_folder

pytestmark = pytest.mark.usefixtures("one_thread")

PROGRAMS = {"excb-pretrain": pretrain, "excb-eval": evaluate, "excb-zoo": zoo}

# What somebody typed, and what the one message must say: what is wrong, and what to type instead.
MISTAKES = [
    # the wrong word
    ("excb-pretrain rn18_smal --data {photos}", ("'rn18_smal'", "did you mean 'rn18_small'?")),
    ("excb-pretrain rn18_small --dta {photos}", ("--dta", "did you mean '--data'?")),
    ("excb-pretrain rn18_small --data {photos} epochs=50", ("'epochs'", "did you mean 'optim.epochs'?")),
    ("excb-pretrain rn18_small --data {photos} optim.epochs=many", ("optim.epochs", "a whole number")),
    ("excb-pretrain rn18_small --data {photos} optim.epochs 50", ("'optim.epochs' is not an override", "=100")),
    (
        "excb-pretrain rn18_small --data {photos} optim.batch=4 method.clusters=4 model.backbone=resnet51",
        ("resnet51", "'resnet50'"),
    ),
    ("excb-eval k-nn --ckpt {run} --data {photos}", ("'k-nn'", "excb-eval --help")),
    ("excb-eval knn --ckpt {run} --data {photos} --batchsize 8", ("--batchsize", "did you mean '--batch-size'?")),
    ("excb-eval knn --ckpt tiny_grocry --data {photos}", ("'tiny_grocry'", "did you mean 'tiny_grocery'?")),
    ("excb-zoo export {run} --out {new} --format onyx", ("'onyx'", "did you mean 'onnx'?")),
    # the wrong place
    ("excb-pretrain rn18_small", ("--data DIR",)),
    ("excb-pretrain rn18_small --data {here}/photso", ("photso", "did you mean '{photos}'?")),
    ("excb-eval knn --ckpt {run} --data {here}/photso", ("photso", "did you mean '{photos}'?")),
    ("excb-eval knn --ckpt {run}s --data {photos}", ("no checkpoint", "did you mean '{run}'?")),
    ("excb-pretrain rn18_small --data {empty}", ("no image", "empty")),
    (
        'excb-pretrain rn18_small --data {photos} --dry-run optim.batch=4 model.options={{"widths":[1]}}',
        ("resnet18", "does not take widths: it takes zero_init_residual"),
    ),
    (
        "excb-pretrain rn18_small --data {photos} optim.batch=4 model.backbone=timm:resnt50",
        ("timm:resnt50", "did you mean 'timm:resnet50'?"),
    ),
    (
        "excb-pretrain rn18_small --data {photos} optim.batch=4 model.backbone=vit_small views.local_size=28",
        ("28 x 28", "choose another size"),
    ),
    (
        "excb-pretrain rn18_small --data {photos} --out {notes} optim.batch=4 method.clusters=4",
        ("notes.txt", "cannot write"),
    ),
    ("excb-pretrain rn18_small --data {photos} optim.batch=4 init={here}/nothing", ("no checkpoint", "nothing")),
    ("excb-pretrain choose --data {photos} --networks {here}/nothing", ("no checkpoint", "nothing")),
    ("excb-eval knn --ckpt {here}/nothing --data {photos}", ("no checkpoint", "nothing")),
    ("excb-eval knn --ckpt {notes} --data {photos}", ("notes.txt", "is not a checkpoint")),
    ("excb-eval knn --ckpt {run} --data {flat}", ("train/", "--train DIR --test DIR")),
    ("excb-eval knn --ckpt {run} --train {flat} --test {flat}", ("has no classes", "sub-folder")),
    ("excb-eval knn --ckpt {run} --train {photos}/train --test {other}", ("classes", "the same folders")),
    ("excb-eval knn --ckpt {run} --data {photos} --out {here}", ("is a folder", "name a file")),
    ("excb-eval compare {notes} {notes}", ("notes.txt", "is not a result")),
    # the wrong machine, size or number
    (
        "excb-pretrain rn18_small --data {photos}/train/ant optim.batch=64",
        ("batch of 64", "lower optim.batch, such as optim.batch="),
    ),
    ("excb-pretrain rn18_small --data {photos} --gpus -1", ("--gpus takes 0",)),
    ("excb-pretrain rn18_small --data {photos} --slurm partition=gpu", ("--slurm needs time=", "time=24:00:00")),
    ("excb-eval knn --ckpt {run} --data {photos} --device gpu", ("'gpu'", "use cpu, cuda or auto")),
    ("excb-eval knn --ckpt {run} --data {photos} --crop 96 --resize 64", ("--crop 96", "--resize 64")),
    ("excb-eval semisup --ckpt {run} --data {photos}", ("--percent", "--help")),
    ("excb-eval semisup --ckpt {run} --data {photos} --percent 5", ("5", "1, 10")),
    ("excb-eval finetune --ckpt {run} --data {photos} --fraction 30", ("--fraction 30", "at most 1")),
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("mistakes")
    write_run(here / "run", 1, recipe=tiny_recipe(eval_resize=48, eval_crop=48))
    write_folder(here / "photos" / "train", each=4, classes=("ant", "bee"), seed=1)
    write_folder(here / "photos" / "test", each=2, classes=("ant", "bee"), seed=2)
    write_folder(here / "other", each=2, classes=("cat", "dog"), seed=3)
    write_folder(here / "one", each=3, classes=("fox",))
    (here / "one" / "fox").rename(here / "flat")
    (here / "one").rmdir()
    (here / "empty").mkdir()
    (here / "notes.txt").write_text("words", encoding="utf-8")
    return here


def contents(folder: Path) -> dict[str, str]:
    """Every file and folder, with the hash of what is in it; but for the locks of runs."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock"
    }


@pytest.mark.parametrize(("line", "words"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_clear_message(
    here: Path, line: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {name: here / name for name in ("run", "photos", "other", "flat", "empty")}
    before = contents(here)
    text = line.format(here=here, notes=here / "notes.txt", new=tmp_path / "new", **places)
    program, *arguments = text.split()
    if program == "excb-pretrain":
        arguments += ["efficiency.workers=0"]
    with contextlib.chdir(tmp_path):  # where runs/ would be made
        assert PROGRAMS[program](arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    errors = [each for each in said.err.splitlines() if each.startswith(f"{program}: error: ")]
    assert len(errors) == 1
    assert said.err.splitlines()[-1] == errors[0]  # nothing after it
    assert "Traceback" not in said.err
    for word in words:
        assert word.format(here=here, **places) in errors[0]
    assert contents(here) == before
    made = [path for path in contents(tmp_path) if (tmp_path / path).is_file()]
    assert made == []
    if "model." in line:
        assert not (tmp_path / "runs").exists()  # not even the folder with its lock


def test_there_are_enough_of_them() -> None:
    assert len({line for line, _ in MISTAKES}) >= 25
