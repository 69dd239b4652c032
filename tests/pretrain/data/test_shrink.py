"""Smaller copies: every image once, upright, in its folder and at its size; small files as they are; stops go on."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from excb.images.decoding import open_image
from excb.images.scanning import scan_folder
from excb.pretrain.__main__ import main
from excb.sources.label_files import LabelTable, by_image
from excb.transfer.map.columns import read_columns
from excb.transfer.photos.labels import photo_labels

ORIENTATION = 0x0112  # EXIF


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Two classes: a large JPEG taken sideways, a large PNG, a small PNG, a name with two dots, and a cut file."""
    root = tmp_path / "photographs"
    (root / "cats").mkdir(parents=True)
    (root / "dogs" / "deep").mkdir(parents=True)
    y, x = np.mgrid[:300, :500]
    picture = Image.fromarray(np.stack([x // 2, y // 2, (x + y) // 4], 2).astype(np.uint8))
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    picture.save(root / "cats" / "sideways.JPG", quality=95, exif=exif)
    picture.save(root / "cats" / "large.png")
    picture.resize((50, 30)).save(root / "dogs" / "small.png")
    picture.save(root / "dogs" / "deep" / "a.b.jpeg", quality=95)
    whole = (root / "cats" / "sideways.JPG").read_bytes()
    (root / "dogs" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    return root


def shrink(data: Path, out: Path, *more: str) -> int:
    return main(["shrink", "--data", str(data), "--out", str(out), "--json", *more])


def test_copies_are_the_photographs_only_smaller(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "copies"
    assert shrink(photographs, out, "--side", "60") == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert (report["written"], report["kept"], len(report["broken"])) == (4, 0, 1)
    assert "warning: 1 cannot be read and have no copy: dogs/cut.jpg" in said.err
    copies = scan_folder(out)
    assert copies.paths == ["cats/large.png.jpg", "cats/sideways.JPG", "dogs/deep/a.b.jpeg", "dogs/small.png"]
    assert copies.classes == ("cats", "dogs")
    sizes = [copies.open(index).size for index in range(4)]
    assert sizes == [(100, 60), (60, 100), (100, 60), (50, 30)]  # the sideways one stands upright
    assert (out / "dogs" / "small.png").read_bytes() == (photographs / "dogs" / "small.png").read_bytes()
    for name, copy in (("cats/large.png", "cats/large.png.jpg"), ("cats/sideways.JPG", "cats/sideways.JPG")):
        copied = open_image(out / copy)
        expected = open_image(photographs / name).resize(copied.size, Image.Resampling.BOX)
        assert abs(np.asarray(copied, np.float64) - np.asarray(expected)).mean() < 2
    held = sum(copies.file(index).stat().st_size for index in range(4))
    assert report["bytes_after"] == held < report["bytes_before"]


def test_labels_of_the_photographs_are_those_of_the_copies(photographs: Path, tmp_path: Path) -> None:
    labels = {"cats/large.png": "a", "cats/sideways.JPG": "b", "dogs/small.png": "c"}
    rows = "".join(f"{path},{label},{label}\n" for path, label in labels.items())
    (tmp_path / "labels.csv").write_text(f"path,label,day\n{rows}", encoding="utf-8")
    out = tmp_path / "copies"
    assert shrink(photographs, out, "--side", "60") == 0
    shrunk = {"cats/large.png.jpg": "a", "cats/sideways.JPG": "b", "dogs/small.png": "c"}
    named = LabelTable.read(tmp_path / "labels.csv", out, tmp_path).images(None)  # as `choose` reads it
    assert named.labels is not None
    assert named.classes is not None
    assert dict(zip(named.paths, (named.classes[label] for label in named.labels), strict=True)) == shrunk
    assert named.root == out
    assert [entry.names for entry in named.ledger.entries] == [("dogs/deep/a.b.jpeg",)]
    copies = scan_folder(out)
    found = photo_labels(copies, tmp_path / "labels.csv", "day")
    assert {path: found.name(index) for index, path in enumerate(copies.paths) if found.name(index)} == shrunk
    assert [day for day in found.series if day] == ["a", "b", "c"]
    columns, others = read_columns(tmp_path / "labels.csv", copies.paths, str(out))
    assert ([column.name for column in columns], others) == (["label", "day"], 0)


def test_a_row_of_its_own_counts_for_more_than_that_of_an_original() -> None:
    assert by_image({"a.png": 1, "b.png": 2, "b.png.jpg": 3, "c.jpg": 4}, {"a.png.jpg", "b.png.jpg", "c.jpg"}) == {
        "a.png.jpg": 1,
        "b.png": 2,
        "b.png.jpg": 3,
        "c.jpg": 4,
    }


def test_a_second_call_writes_what_is_missing_and_nothing_else(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "copies"
    assert shrink(photographs, out) == 0
    times = {file: file.stat().st_mtime_ns for file in out.rglob("*.*")}
    (out / "cats" / "sideways.JPG").unlink()
    capsys.readouterr()
    assert shrink(photographs, out, "--quiet") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["written"], report["kept"]) == (1, 3)
    assert {file: file.stat().st_mtime_ns for file in times if file.name != "sideways.JPG"}.items() <= times.items()


def test_copies_of_another_size_are_not_mixed(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "copies"
    assert shrink(photographs, out, "--side", "60") == 0
    before = {file: file.read_bytes() for file in out.rglob("*.*")}
    assert shrink(photographs, out, "--side", "40") == 2
    assert "has 60 pixels and not 40: choose another --out" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in before} == before


def test_copies_are_not_mixed_with_other_images(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "copies"
    (out / "birds").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(out / "birds" / "other.png")
    assert shrink(photographs, out) == 2
    said = capsys.readouterr().err
    assert f"holds 1 image without an original in {photographs}, such as birds/other.png: name an --out" in said
    assert [file.name for file in out.rglob("*.*")] == ["other.png"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("photographs --out photographs/small", "are one inside the other: name an --out beside"),
        ("photographs --out .", "are one inside the other"),
        ("photographs --out copies --side 0", "--side takes 1 pixel or more, not 0"),
        ("photographs/dogs --out photographs/cats/large.png/x", "cannot write"),
        ("nowhere --out copies", "no folder nowhere"),
    ],
)
@pytest.mark.usefixtures("photographs")
def test_places_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["shrink", "--data", *line.split()]) == 2
    assert message in capsys.readouterr().err
    assert [place.name for place in tmp_path.iterdir()] == ["photographs"]


def test_two_photographs_never_share_a_copy(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photographs / "cats" / "large.png.jpg").write_bytes((photographs / "cats" / "sideways.JPG").read_bytes())
    assert shrink(photographs, tmp_path / "small") == 2
    assert "cats/large.png and cats/large.png.jpg" in capsys.readouterr().err
    assert not (tmp_path / "small").exists()
