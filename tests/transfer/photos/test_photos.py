"""`excb.Photos` and `excb-eval photos` on a small folder: what is labelled, guessed, asked for, written and refused."""

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import excb
from excb import UserError
from excb.features.extraction import Extraction
from excb.transfer.cli import main
from excb.transfer.photos.report import COLUMNS

NETWORK = "tiny_grocery"
COLOURS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 60, 210)}


def write_colours(folder: Path, each: int = 14) -> Path:
    """Photographs of three colours in one flat folder, with noise that makes each its own."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name, colour in COLOURS.items():
        for number in range(each):
            grey = np.kron(random.normal(0, 45, (6, 6)), np.ones((8, 8)))[..., None]
            pixels = np.array(colour) + grey + random.normal(0, 12, (48, 48, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{name}{number:02}.png")
    return folder


def write_labels(file: Path, rows: Sequence[Sequence[str]], columns: Sequence[str] = ("path", "label")) -> Path:
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([columns, *rows])
    return file


def labelled(folder: Path, each: int) -> list[tuple[str, str]]:
    """Some of the files of each colour, with its name."""
    return [(f"{name}{number:02}.png", name) for name in COLOURS for number in range(each)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colours(tmp_path_factory.mktemp("photos") / "colours")


@pytest.fixture(scope="module")
def photos(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> excb.Photos:
    """Eight labels of each colour, one of them wrong, and one row without a label."""
    rows = [(path, "red" if path == "blue03.png" else name) for path, name in labelled(folder, 8)]
    table = write_labels(tmp_path_factory.mktemp("labels") / "labels.csv", [*rows, ("red13.png", "")])
    return excb.Photos(folder, table, networks=[NETWORK], device="cpu", quiet=True)


@pytest.mark.parametrize("splits", [("train", "test"), ("train", "val")])
def test_train_and_test_are_no_classes(
    splits: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The README's folder: `photos/train` and `photos/test` hold one folder per class."""
    for split in splits:
        for name in ("ant", "bee"):
            write_colours(tmp_path / "photos" / split / name, each=1)
    made = excb.Photos(tmp_path / "photos", networks=[NETWORK], device="cpu")
    assert made.labels.classes == ("ant", "bee")
    names = [made.labels.name(index) for index in range(len(made))]
    assert names == [path.split("/")[1] for path in made.images.paths]
    below = " and ".join(sorted(splits))
    assert f"labels: the sub-folders below {below}, all one set, 2 classes" in capsys.readouterr().err


def test_the_rest_is_guessed(photos: excb.Photos) -> None:
    guessed = photos.predict(sure=0.8)
    assert [each.path for each in guessed.guesses] == [
        f"{name}{n:02}.png" for name in sorted(COLOURS) for n in range(8, 14)
    ]
    assert all(each.path.startswith(each.label) for each in guessed.guesses)
    assert all(0 < each.probability <= 1 for each in guessed.guesses)
    assert guessed.network == NETWORK
    assert len(guessed.sure) + len(guessed.unsure) == len(guessed)


def test_cached_vectors_need_no_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        capsys.readouterr()
        excb.Photos(folder, networks=[NETWORK], device="cpu", cache=tmp_path).embeddings(NETWORK)
    assert capsys.readouterr().err == ""


def test_networks_stand_beside_references(photos: excb.Photos) -> None:
    comparison = photos.compare()
    names = {entry.name for entry in comparison.of("reference")}
    assert names == {
        "most frequent class",
        "raw pixels",
        "colour histogram",
        "whitened patches with k-means",
        "untrained network",
    }
    assert [entry.name for entry in comparison.of("network")] == [NETWORK]
    for entry in comparison.entries:
        low, high = entry.interval
        assert low <= entry.accuracy <= high
    assert (comparison.labelled, comparison.classes) == (24, 3)


def test_references_come_from_the_cache(photos: excb.Photos, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = photos.compare()
    monkeypatch.setattr(Extraction, "run", lambda *_arguments, **_options: pytest.fail("features are computed again"))
    again = excb.Photos(folder, networks=[NETWORK], device="cpu", quiet=True)
    again.labels = photos.labels
    assert again.compare().to_dict() == computed.to_dict()


def test_the_wrong_label_is_doubted(photos: excb.Photos) -> None:
    assert [(each.path, each.label, each.suggestion) for each in photos.label_errors()] == [
        ("blue03.png", "red", "blue")
    ]


def test_copies_and_series_are_never_on_both_sides(folder: Path, tmp_path: Path) -> None:
    here = write_colours(tmp_path / "with copies")
    Image.open(here / "red00.png").save(here / "red00 again.jpg", quality=95)
    (here / "copy.png").write_bytes((here / "green05.png").read_bytes())
    days = [(path, name, f"day {int(path[-6:-4]) // 3}") for path, name in labelled(here, 12)]
    copies = [("red00 again.jpg", "red", ""), ("copy.png", "green", "")]
    table = write_labels(tmp_path / "labels.csv", [*days, *copies], ("path", "label", "Day"))
    photos = excb.Photos(here, table, networks=[NETWORK], series="Day", device="cpu", quiet=True)
    group = dict(zip(photos.images.paths, photos.groups.tolist(), strict=True))
    assert group["red00.png"] == group["red00 again.jpg"] == group["blue02.png"]
    assert group["copy.png"] == group["green05.png"]
    assert group["red00.png"] != group["red03.png"]
    train, test = photos.split(0.25)
    assert not {group[path] for path in train} & {group[path] for path in test}
    assert sorted(train + test) == sorted(path for path, *_ in [*days, *copies])
    assert len(test) == pytest.approx(0.25 * 38, abs=6)


def test_a_copy_of_a_labelled_image_has_its_label(folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "photos"
    shutil.copytree(folder, copied)
    with Image.open(folder / "red00.png") as image:
        image.convert("RGB").save(copied / "again.jpg", quality=70)
    rows = [(path, "blue" if path == "red00.png" else name) for path, name in labelled(folder, 8)]
    photos = excb.Photos(copied, write_labels(tmp_path / "l.csv", rows), networks=[NETWORK], device="cpu", quiet=True)
    (copy,) = (each for each in photos.predict().guesses if each.path == "again.jpg")
    assert (copy.label, copy.sure, copy.copy_of) == ("blue", True, "red00.png")
    assert not any(each.copy_of for each in photos.predict().guesses if each.path != "again.jpg")
    assert repr(photos) == f"<Photos in {copied}: 43 images, 24 labelled>"


def test_networks_of_other_channels_are_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = {NETWORK: 3, "twelve-bands": 12}
    monkeypatch.setattr("excb.transfer.photos.photos.networks_here", lambda: here)
    assert excb.Photos(folder, device="cpu").networks == (NETWORK,)
    assert "of other channels than 3: twelve-bands" in capsys.readouterr().err
    del here[NETWORK]
    with pytest.raises(UserError, match="have 3 channels, and no network on this machine takes them"):
        excb.Photos(folder, device="cpu", quiet=True)


def test_deep_images_have_one_range(folder: Path, tmp_path: Path) -> None:
    """12 bits in files of 16: by the stated range the vectors are those of the 8-bit photographs."""
    here, rows = tmp_path / "deep", labelled(folder, 3)
    here.mkdir()
    (tmp_path / "plain").mkdir()
    for path, _ in rows:
        grey = np.asarray(Image.open(folder / path).convert("L"))
        Image.fromarray(grey.astype(np.uint16) * 16).save(here / path)
        Image.fromarray(grey).save(tmp_path / "plain" / path)
    table = write_labels(tmp_path / "labels.csv", labelled(folder, 2))
    deep = excb.Photos(here, table, networks=[NETWORK], range="0..4080", device="cpu", quiet=True)
    plain = excb.Photos(tmp_path / "plain", table, networks=[NETWORK], device="cpu", quiet=True)
    np.testing.assert_allclose(deep.rows(NETWORK), plain.rows(NETWORK), atol=2e-3)
    assert "data:image/jpeg" in deep.report(tmp_path / "out").read_text()


def test_without_labels_it_says_what_to_label_first(folder: Path) -> None:
    photos = excb.Photos(folder, networks=[NETWORK], device="cpu", quiet=True)
    first = photos.label_next(6)
    assert first.rule == "coverage"
    assert {path.rstrip("0123456789.png") for path in first.paths} == {"red", "ree", "blue"} - {"ree"} | {"gree"}
    with pytest.raises(UserError, match="no image has a label"):
        photos.compare()


def test_the_command_writes_a_page_and_a_row_for_each_image(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_labels(tmp_path / "labels.csv", labelled(folder, 6))
    out = tmp_path / "out"
    command = ["photos", str(folder), "--labels", str(table), "--networks", NETWORK, "--device", "cpu"]
    assert main([*command, "--next", "5", "--out", str(out), "--json", "--quiet"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert json.loads((out / "photos.json").read_text()) == answer
    with (out / "photos.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == answer["images"] == 42
    assert sum(bool(row["guess"]) for row in rows) == answer["predictions"]["guesses"] == 24
    asked = sorted((row for row in rows if row["label_next"]), key=lambda row: int(row["label_next"]))
    assert [row["path"] for row in asked] == answer["label_next"]["paths"]
    page = (out / "photos.html").read_text()
    assert 'src="data:image/jpeg' in page
    assert "http" not in page.replace("http-equiv", "")
    assert main([*command, "--out", str(out)]) == 0  # as text
    assert "is the best network here" in (said := capsys.readouterr().out) or "No network is ahead" in said


RED = [("red00.png", "red")]


@pytest.mark.parametrize(
    ("rows", "columns", "options", "message"),
    [
        ([("nowhere.png", "red")], ("path", "label"), [], "paths start in that folder"),
        ([("colours/red00.png", "red")], ("path", "label"), [], "leave colours/ out of the paths"),
        (RED, ("path", "kind"), [], "it needs columns path"),
        ([*RED, ("red00.png", "blue")], ("path", "label"), [], "two labels"),
        (RED, ("path", "label"), ["--series", "day"], "day"),
        (RED, ("path", "label"), ["--sure", "1.5"], "between 0 and 1"),
        (RED, ("path", "label"), ["--next", "0"], "one image at least"),
        ([*RED, ("blue00.png", "blue")], ("path", "label"), ["--networks", "nothing"], "nothing"),
    ],
)
def test_mistakes_take_one_line(
    rows: list[tuple[str, str]],
    columns: tuple[str, str],
    options: list[str],
    message: str,
    request: pytest.FixtureRequest,
) -> None:
    folder, tmp_path, capsys = (request.getfixturevalue(name) for name in ("folder", "tmp_path", "capsys"))
    table = write_labels(tmp_path / "labels.csv", rows, columns)
    command = [
        "photos",
        str(folder),
        "--labels",
        str(table),
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "out"),
        "--quiet",
    ]
    assert main([*command, *(options if "--networks" in options else ["--networks", NETWORK, *options])]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1


def test_the_report_is_refused_among_the_images(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["photos", str(folder), "--networks", NETWORK, "--out", str(folder / "report"), "--quiet"]) == 2
    assert "is among the images" in capsys.readouterr().err


def test_a_parquet_table_gives_the_same_labels(folder: Path, photos: excb.Photos, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="reads Parquet; pip install 'excb[parquet]'")
    from pyarrow import parquet

    rows = labelled(folder, 8)
    columns = {"path": [path for path, _ in rows] + ["red13.png"], "label": [name for _, name in rows] + [None]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "labels.parquet")
    found = excb.Photos(folder, tmp_path / "labels.parquet", networks=[NETWORK], quiet=True).labels
    assert found.classes == photos.labels.classes
    assert found.labelled.tolist() == photos.labels.labelled.tolist()
