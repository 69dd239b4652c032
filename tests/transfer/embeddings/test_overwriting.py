"""Files of `embed`, `search`, `map`, `features` and `photos` are replaced by those of the same network and images."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import excb
from excb.errors import UserError
from excb.transfer.cli import main
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import CLASSES, write_folder

pytestmark = pytest.mark.usefixtures("one_thread")

PASS = "--workers 0 --device cpu --no-cache --quiet"
# Commands, and the files that --out and they themselves name. The first file is given to --out.
COMMANDS = {
    "npz": (f"embed --ckpt {{run}} --data {{data}} {PASS}", ["a.npz"]),
    "parquet": (f"embed --ckpt {{run}} --data {{data}} {PASS}", ["a.parquet"]),
    "safetensors": (f"embed --ckpt {{run}} --data {{data}} {PASS}", ["a.safetensors"]),
    "csv": (f"embed --ckpt {{run}} --data {{data}} {PASS}", ["a.csv", "a.csv.json"]),
    "index": (f"embed --ckpt {{run}} --data {{data}} {PASS} --index {{out}}.faiss",
              ["a.npz", "a.npz.faiss", "a.npz.faiss.json"]),
    "search": (f"search --ckpt {{run}} --data {{data}} {PASS} --near-duplicates 0.99", ["a.html", "a.csv"]),
    "map": (f"map --ckpt {{run}} --data {{data}} {PASS} --method tsne", ["a.html"]),
    "features": (f"features --ckpt {{run}} --train {{data}} --test {{data}} {PASS}", ["a.npz"]),
    "photos": ("photos {data} --networks {run} --device cpu --quiet --cache {cache}",
               ["a", "a/photos.html", "a/photos.csv", "a/photos.json"]),
}  # fmt: skip
Runner = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("overwriting")
    for name, step in (("one", 5), ("two", 6)):
        write_run(place / name, step, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    for name, seed in (("data", 1), ("others", 2)):
        write_folder(place / name, each=3 if name == "data" else 4, classes=CLASSES[:3], seed=seed)
    return place


@pytest.fixture
def command(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Runner:
    """Runs one of `COMMANDS`; its exit code and what it says on stderr."""

    def run(name: str, *more: str, run: str = "one", data: Path | None = None) -> tuple[int, str]:
        line, (out, *_) = COMMANDS[name]
        words = line.format(run=place / run, data=data or place / "data", out=tmp_path / out, cache=tmp_path / "cache")
        capsys.readouterr()
        return main([*words.split(), "--out", str(tmp_path / out), *more]), capsys.readouterr().err

    return run


def contents(tmp_path: Path, name: str) -> dict[str, str]:
    files = (tmp_path / file for file in COMMANDS[name][1])
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}


def refused(answer: tuple[int, str]) -> bool:
    return answer[0] == 2 and answer[1].count("\n") == 1 and "--overwrite" in answer[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_files_of_something_else_are_kept(place: Path, tmp_path: Path, command: Runner, name: str) -> None:
    assert command(name)[0] == 0
    assert command(name)[0] == 0
    before, others = contents(tmp_path, name), place / "others"  # more images, by the same names and others
    assert len(before) == len([file for file in COMMANDS[name][1] if file != "a"])
    assert refused(command(name, data=others))
    if name != "photos":  # compares networks, and has no dry run
        assert refused(command(name, run="two"))
        assert refused(command(name, "--dry-run", data=others))
    assert contents(tmp_path, name) == before
    assert command(name, "--overwrite", data=others)[0] == 0
    assert contents(tmp_path, name) != before


@pytest.mark.parametrize("name", COMMANDS)
def test_files_that_are_none_of_the_commands_are_kept(tmp_path: Path, command: Runner, name: str) -> None:
    for file in (tmp_path / each for each in COMMANDS[name][1] if each != "a"):
        file.parent.mkdir(exist_ok=True)
        for other in ("path,label\na.jpg,ant\n", "{}", "<!doctype html>"):
            file.write_text(other, encoding="utf-8")
            assert refused(command(name)), file.name
            assert file.read_text(encoding="utf-8") == other
        file.write_text("", encoding="utf-8")  # such as one that the system made: nothing is lost
    assert command(name)[0] == 0


def test_images_may_come_and_those_that_go_are_asked_about(place: Path, tmp_path: Path, command: Runner) -> None:
    data = tmp_path / "data"
    shutil.copytree(place / "data", data)
    for name in ("npz", "csv"):
        assert command(name, data=data)[0] == 0
    shutil.copy(next(data.rglob("*.png")), data / "new.png")
    for name in ("npz", "csv"):
        assert command(name, data=data)[0] == 0
    (data / "new.png").unlink()
    for name in ("npz", "csv"):
        answer = command(name, data=data)
        assert refused(answer)
        assert "has vectors of 1 image that is not among these, such as new.png" in answer[1]


def test_a_page_of_another_command_is_kept(command: Runner) -> None:
    assert command("search")[0] == 0
    answer = command("map")
    assert refused(answer)
    assert "has a page of search" in answer[1]


def test_features_of_an_earlier_version_do_not_say_what_they_are_of(tmp_path: Path, command: Runner) -> None:
    assert command("features")[0] == 0
    file = tmp_path / "a.npz"
    with np.load(file) as arrays:
        earlier = {name: arrays[name] for name in arrays.files if name != "meta"}
    np.savez(file, **earlier)
    assert refused(command("features"))


def test_a_table_of_photographs_that_was_changed_is_kept(tmp_path: Path, command: Runner) -> None:
    assert command("photos")[0] == 0
    table = tmp_path / "a" / "photos.csv"
    changed = table.read_text(encoding="utf-8").replace(",ant,", ",bee,", 1)
    table.write_text(changed, encoding="utf-8")
    answer = command("photos")
    assert refused(answer)
    assert "was changed since it was written: name it with --labels" in answer[1]
    assert table.read_text(encoding="utf-8") == changed
    assert command("photos", "--labels", str(table))[0] == 0
    assert ",bee," in table.read_text(encoding="utf-8").splitlines()[1]
    digest = json.loads((tmp_path / "a" / "photos.json").read_text(encoding="utf-8"))["table_sha256"]
    assert digest == hashlib.sha256(table.read_bytes()).hexdigest()


def test_a_csv_says_what_made_it_beside_it(place: Path, tmp_path: Path, command: Runner) -> None:
    assert command("csv")[0] == 0
    assert command("npz")[0] == 0
    table, beside = tmp_path / "a.csv", tmp_path / "a.csv.json"
    facts = json.loads(beside.read_text(encoding="utf-8"))
    with np.load(tmp_path / "a.npz") as arrays:
        assert facts["model"] == json.loads(str(arrays["meta"]))["model"]
    assert facts["table_sha256"] == hashlib.sha256(table.read_bytes()).hexdigest()
    with table.open(encoding="utf-8") as stream:
        assert next(stream).startswith("path,label,v0,v1")
    beside.unlink()  # as of an earlier version, or after a kill
    assert command("csv")[0] == 0
    table.write_text(table.read_text(encoding="utf-8").replace(",0.", ",1.", 1), encoding="utf-8")
    answer = command("csv")
    assert refused(answer)
    assert f"{table} was changed since it was written" in answer[1]


def test_python_keeps_files_of_something_else(place: Path, tmp_path: Path) -> None:
    one, two = (
        excb.embed(place / run, place / "data", workers=0, device="cpu", quiet=True, no_cache=True)
        for run in ("one", "two")
    )

    def save_map(made: excb.Embeddings, *, overwrite: bool = False) -> object:
        return made.map(tmp_path / "a.html", method="tsne", quiet=True, overwrite=overwrite)

    ways: dict[str, Callable[..., object]] = {
        "npz": lambda made, **given: made.save(tmp_path / "a.npz", **given),
        "csv": lambda made, **given: made.save(tmp_path / "a.csv", **given),
        "to_csv": lambda made, **given: made.to_csv(tmp_path / "b.csv", **given),
        "index": lambda made, **given: made.save_index(tmp_path / "a.faiss", **given),
        "map": save_map,
        "clusters": lambda made, **given: made.clusters(2).save(tmp_path / "clusters", quiet=True, **given),
    }
    for name, save in ways.items():
        save(one)
        save(one)
        with pytest.raises(UserError, match="or replace it with overwrite=True"):
            save(two)
        if name in ("npz", "csv"):
            save(one[:2], overwrite=True)
            save(one)  # images may come
            with pytest.raises(UserError, match="not among these"):
                save(one[:2])
        save(two, overwrite=True)
        save(two)
    with pytest.raises(UserError, match="has vectors of other weights"):
        excb.embed(place / "one", place / "data", workers=0, quiet=True, out=tmp_path / "a.npz")
    excb.embed(place / "one", place / "data", workers=0, quiet=True, out=tmp_path / "a.npz", overwrite=True)
    one.near_duplicates(0.99, quiet=True).to_csv(tmp_path / "c.csv")
    one.near_duplicates(0.99, quiet=True).to_csv(tmp_path / "c.csv")
    with pytest.raises(UserError, match="is no table of near-duplicates"):
        one.near_duplicates(0.99, quiet=True).to_csv(tmp_path / "b.csv")
