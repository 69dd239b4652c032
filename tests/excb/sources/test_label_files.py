"""Tests of labels in a table: the same images and labels as in class folders, wherever the table lies; and mistakes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import excb
from excb.errors import UserError
from excb.images.image_set import Images, ledger_of
from excb.transfer.cli import main
from excb.transfer.data.concerns import concerns
from excb.transfer.data.sources import images_of, train_and_test
from excb.transfer.embeddings.sources import any_images
from excb.transfer.overlap.sets import both_sets
from excb.transfer.robustness.sets import open_set

CLASSES = ("ant", "bee", "cat")


def write_images(folder: Path, number: int, *, first: int = 0) -> dict[str, str]:
    """A flat folder of images, and their labels."""
    folder.mkdir(parents=True)
    labels = {}
    for index in range(first, first + number):
        Image.new("RGB", (8, 8), (9 * index, 60, 90)).save(folder / f"{index:02}.png")
        labels[f"{index:02}.png"] = CLASSES[index % 3]
    return labels


def table(file: Path, labels: dict[str, str], head: str = "path,label", prefix: str = "", end: str = "") -> Path:
    file.write_text("\n".join([head, *(f"{prefix}{path},{label}{end}" for path, label in labels.items()), ""]))
    return file


def labels_of(images: Images) -> dict[str, str]:
    assert images.labels is not None
    assert images.classes is not None
    names = [images.classes[label] for label in images.labels]
    return {path.rpartition("/")[2]: name for path, name in zip(images.paths, names, strict=True)}


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    write_images(tmp_path / "set/train", 9)
    write_images(tmp_path / "set/test", 6, first=9)
    return tmp_path / "set"


TRAIN = {f"{index:02}.png": CLASSES[index % 3] for index in range(9)}
TEST = {f"{index:02}.png": CLASSES[index % 3] for index in range(9, 15)}


def inside(root: Path) -> dict[str, str]:
    """As imagefolder of Hugging Face."""
    table(root / "train/metadata.csv", TRAIN, "file_name,label")
    table(root / "test/metadata.csv", TEST, "file_name,label")
    return {"data": str(root)}


def beside(root: Path) -> dict[str, str]:
    table(root / "train.csv", TRAIN)
    table(root / "test.csv", TEST, prefix="test/")
    return {"data": str(root)}


def one_with_splits(root: Path) -> dict[str, str]:
    lines = [f"train/{path},{label},train" for path, label in TRAIN.items()]
    lines += [f"test/{path},{label},val" for path, label in TEST.items()]
    (root / "labels.csv").write_text("\n".join(["path,label,split", *lines]))
    return {"data": str(root)}


def one_in_the_place_of_a_folder(root: Path) -> dict[str, str]:
    one_with_splits(root)
    (root / "labels.csv").rename(root / "all.csv")
    return {"data": str(root / "all.csv")}


def two_in_the_place_of_folders(root: Path) -> dict[str, str]:
    one = table(root / "a.csv", TRAIN, "\ufeffFile_Name,Class,note", prefix="train\\", end=",x")
    two = table(root / "b.csv", TEST, prefix=f"{root.absolute()}/test/")
    return {"train": str(one), "test": str(two)}


def semicolons(root: Path) -> dict[str, str]:
    places = beside(root)
    for file in root.glob("*.csv"):
        file.write_text(file.read_text().replace(",", ";"))
    return places


@pytest.mark.parametrize(
    "layout",
    [inside, beside, one_with_splits, one_in_the_place_of_a_folder, two_in_the_place_of_folders, semicolons],
)
def test_labels_are_those_of_the_table_wherever_it_lies(flat: Path, layout: Callable[[Path], dict[str, str]]) -> None:
    places = layout(flat)
    train, test = train_and_test(places.get("data"), places.get("train"), places.get("test"))
    assert labels_of(train) == TRAIN
    assert labels_of(test) == TEST
    assert train.classes == test.classes == CLASSES
    assert np.asarray(test.open(0))[0, 0].tolist() == [81, 60, 90]
    assert not concerns(train, test)


def test_a_folder_counts_as_class_folders_do(flat: Path, tmp_path: Path) -> None:
    """Fingerprints of a set with class folders and of a table on the same files are equal."""
    folders = tmp_path / "folders"
    for split, labels in (("train", TRAIN), ("test", TEST)):
        for path, label in labels.items():
            (folders / split / label).mkdir(parents=True, exist_ok=True)
            (folders / split / label / path).write_bytes((flat / split / path).read_bytes())
        listed = {f"{split}/{label}/{path}": label for path, label in labels.items()}
        table(folders / f"{split}-labels.csv", listed)
    by_folder, _ = train_and_test(str(folders))
    by_table, _ = train_and_test(None, folders / "train-labels.csv", folders / "test-labels.csv")
    assert labels_of(by_folder) == labels_of(by_table)
    assert by_folder.labels.tolist() == by_table.labels.tolist()  # type: ignore[union-attr, unused-ignore]


def test_every_kind_of_place_takes_it(flat: Path) -> None:
    inside(flat)
    assert labels_of(images_of(str(flat / "train"))) == TRAIN  # clusters
    assert labels_of(any_images(str(flat / "train"), note=lambda _: None)) == TRAIN  # embed, search
    assert labels_of(any_images(str(flat / "train/metadata.csv"), note=lambda _: None)) == TRAIN
    assert labels_of(open_set(str(flat / "test"), CLASSES).images) == TEST  # robustness
    reporter = excb.console.Reporter(quiet=True)
    first, second = both_sets(str(flat / "train"), str(flat / "test"), None, reporter)  # overlap
    assert (labels_of(first), labels_of(second)) == (TRAIN, TEST)


def test_a_table_counts_for_more_than_sub_folders_and_says_so(tmp_path: Path) -> None:
    of_year = {year: write_images(tmp_path / year, 6) for year in ("1", "2")}
    labels = {f"{year}/{path}": label for year, known in of_year.items() for path, label in known.items()}
    table(tmp_path / "labels.csv", labels)
    noted: list[str] = []
    images = images_of(str(tmp_path), note=noted.append)
    assert images.classes == CLASSES
    assert noted == [f"labels of {tmp_path}: those of labels.csv"]
    table(tmp_path / "labels.csv", labels, "file_name,caption")  # of something else: as before
    assert images_of(str(tmp_path)).classes == ("1", "2")


def test_images_without_a_row_are_left_out_and_counted(flat: Path) -> None:
    table(flat / "train/labels.csv", dict(list(TRAIN.items())[:6]))
    images = images_of(str(flat / "train"))
    assert len(images) == 6
    entry = next(entry for entry in images.ledger.entries if "row" in entry.reason)  # type: ignore[attr-defined, unused-ignore]
    assert (entry.reason, entry.count, entry.names) == (
        "images without a row in labels.csv",
        3,
        ("06.png", "07.png", "08.png"),
    )


def test_all_images_without_a_row_are_counted_wherever_they_lie(tmp_path: Path) -> None:
    for folder in ("named", "other"):
        write_images(tmp_path / folder, 3)
    table(tmp_path / "labels.csv", {"named/00.png": "a", "named/01.png": "b"})
    images = images_of(str(tmp_path))
    assert len(images) == 2
    assert [entry.count for entry in ledger_of(images).entries if "row" in entry.reason] == [4]


def test_images_without_a_row_are_told_once(flat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(f"train/{name}", label, "train") for name, label in list(TRAIN.items())[:6]]
    rows += [(f"test/{name}", label, "test") for name, label in TEST.items()]
    text = "".join(f"{','.join(row)}\n" for row in [("path", "label", "split"), *rows])
    (flat / "labels.csv").write_text(text, encoding="utf-8")
    line = ["knn", "--ckpt", "conv4_photos", "--data", str(flat / "labels.csv"), "--no-cache", "--device", "cpu"]
    assert main([*line, "--dry-run"]) == 0
    assert capsys.readouterr().err.count("3 images without a row in labels.csv") == 1
    line = ["overlap", "--train", str(flat / "labels.csv"), "--test", str(flat / "test"), "--device", "cpu"]
    assert main([*line, "--dry-run"]) == 0
    assert capsys.readouterr().err.count("3 images without a row in labels.csv") == 1


def test_a_table_in_another_encoding_is_refused_in_words(flat: Path) -> None:
    (flat / "train/labels.csv").write_bytes("path,label\n00.png,Küche\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"labels.csv: it is no text in UTF-8 \(byte 20\): save it as UTF-8"):
        images_of(str(flat / "train"))


def test_numbers_are_in_their_order(flat: Path) -> None:
    table(flat / "train/labels.csv", {path: f"{index}" for index, path in enumerate(TRAIN, 5)})
    table(flat / "test/labels.csv", {path: f"{index}" for index, path in enumerate(TEST, 5)})
    train, test = train_and_test(str(flat))
    assert train.classes == test.classes == tuple(map(str, range(5, 14)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\n00.png,ant\nzz.png,bee\n", r"1 of 2 images of .*labels.csv not in .*train, such as zz.png"),
        ("path,label\n00.png,ant\n00.png,bee\n", r"gives 00.png two labels, ant and bee: remove one row"),
        ("name,species\n00.png,ant\n", r"has the columns name, species: it needs columns path \(or file_name\) and"),
        ("00.png,ant\n01.png,bee\n", r"has the columns 00.png, ant: it needs columns path"),
        ("", r"has the columns none: it needs columns path"),
        ("path,label\n", r"labels.csv has no row"),
        ("path,label\n00.png\n", r"a row has too few columns: 00.png"),
        ("path,label\n00.png,\n", r"00.png has no label"),
        ("path,label,split\n00.png,ant,fold1\n", r"has no row of the split train: its column split says fold1"),
        ("path,label\n00.png,ant\n01.png,ant\n", r"has one class only \(ant\)"),
    ],
)
def test_every_mistake_is_one_line(flat: Path, text: str, message: str) -> None:
    (flat / "train/labels.csv").write_text(text)
    table(flat / "test/labels.csv", TEST)
    with pytest.raises(UserError, match=message) as caught:
        train_and_test(None, flat / "train", flat / "test")
    assert "\n" not in str(caught.value)


def test_one_table_of_two_splits_needs_to_say_which(flat: Path) -> None:
    with pytest.raises(UserError, match=r"a.csv has no column split: add one, or name two with --train CSV --test CSV"):
        train_and_test(str(table(flat / "a.csv", TRAIN)))
    with pytest.raises(UserError, match=r"train has no classes: put .* or write labels.csv there with the columns"):
        train_and_test(str(flat))


def test_a_protocol_gives_the_figures_of_class_folders(flat: Path, tmp_path: Path) -> None:
    folders = tmp_path / "folders"
    for split, labels in (("train", TRAIN), ("test", TEST)):
        for path, label in labels.items():
            (folders / split / label).mkdir(parents=True, exist_ok=True)
            (folders / split / label / path).write_bytes((flat / split / path).read_bytes())
    inside(flat)
    options = {"k": [1], "device": "cpu", "no_cache": True, "quiet": True, "workers": 0}
    by_table, by_folder = (excb.evaluate("tiny_grocery", "knn", data=str(root), **options) for root in (flat, folders))  # type: ignore[arg-type, unused-ignore]
    assert by_table.figures == by_folder.figures
