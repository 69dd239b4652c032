"""Tests of what is odd about a train and a test set: empty classes, swapped splits, images in both."""

import shutil
from pathlib import Path

import pytest

from excb.images.scanning import scan_folder
from excb.transfer.data import concerns as module
from excb.transfer.data.concerns import concerns
from tests.transfer.labelled_images import write_folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_folder(tmp_path / "train", each=4, classes=("ant", "bee"), seed=1)
    write_folder(tmp_path / "test", each=2, classes=("ant", "bee"), seed=2)
    return tmp_path


def found(place: Path, train: str = "train", test: str = "test") -> list[str]:
    return concerns(scan_folder(place / train), scan_folder(place / test))


def test_usual_sets_are_no_concern(place: Path) -> None:
    (place / "train" / ".hidden").mkdir()
    assert found(place) == []


def test_empty_class_folders(place: Path) -> None:
    for name in ("cat", "dog"):
        (place / "train" / name).mkdir()
    (place / "train" / "cat" / "notes.txt").write_text("words", encoding="utf-8")
    (place / "test" / "eel").mkdir()
    assert found(place) == [
        f"{place / 'train'} has 2 class folders without an image (cat, dog): no classes of it",
        f"{place / 'test'} has 1 class folder without an image (eel): no class of it",
    ]


def test_swapped_splits(place: Path) -> None:
    expected = f"{place / 'test'} has 4 train images, fewer than the 8 test images of {place / 'train'}: are the two"
    assert [line.startswith(expected) for line in found(place, "test", "train")] == [True]


def test_identical_images_whatever_their_names(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0, 1):
        shutil.copy(place / "train" / "ant" / f"{number}.png", place / "test" / "bee" / f"same{number}.png")
    shutil.copy(place / "train" / "ant" / "0.png", place / "train" / "ant" / "again.png")
    (line,) = found(place)
    assert line.startswith("2 of 6 test images are among the train images too, such as ")
    assert str(place / "test" / "bee" / "same0.png") in line
    monkeypatch.setattr(module, "MOST", 3)  # of more images nothing is compared
    assert found(place) == []
