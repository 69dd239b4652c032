"""Folders searched for images: what is found, in which order, and with which labels."""

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from excb.errors import UserError
from excb.images.scanning import refuse_among, scan_folder
from excb.sources.opening import read_list
from tests.excb.images.empty_files import touch


def shuffled(scan: Callable[..., Any]) -> Callable[..., Any]:
    """`os.scandir` on a file system that lists its entries in another order."""

    @contextmanager
    def scan_shuffled(folder: Any) -> Iterator[list[os.DirEntry[str]]]:
        with scan(folder) as found:
            entries = list(found)
        random.Random(2).shuffle(entries)
        yield entries

    return scan_shuffled


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message


def test_folders_of_any_depth_are_searched(tmp_path: Path) -> None:
    images = scan_folder(touch(tmp_path, "a/1.jpg", "a/b/c/d/2.jpg", "a/b/3.jpg", "e/f/4.jpg"))
    assert list(images.paths) == ["a/1.jpg", "a/b/3.jpg", "a/b/c/d/2.jpg", "e/f/4.jpg"]
    assert len(images) == 4
    assert images.file(2) == tmp_path / "a" / "b" / "c" / "d" / "2.jpg"
    assert images.file(2).is_file()


def test_first_level_folders_are_the_classes(tmp_path: Path) -> None:
    images = scan_folder(touch(tmp_path, "dog/1.jpg", "cat/x/9.jpg", "cat/y/0.jpg", "eel/3.jpg", "empty/readme.txt"))
    assert images.classes == ("cat", "dog", "eel")  # `empty` holds no image
    assert images.labels is not None
    named = {path: images.classes[label] for path, label in zip(images.paths, images.labels, strict=True)}
    assert named == {path: path.split("/")[0] for path in images.paths}
    assert images.labels.dtype == np.int64


@pytest.mark.parametrize(
    "paths",
    [
        ["1.jpg", "2.jpg"],
        ["a/1.jpg", "a/2.jpg"],  # one folder tells nothing apart
        ["a/1.jpg", "b/2.jpg", "3.jpg"],  # not every image lies in a folder
        ["a/b/1.jpg", "a/c/2.jpg"],
    ],
)
def test_other_layouts_have_no_labels(tmp_path: Path, paths: list[str]) -> None:
    images = scan_folder(touch(tmp_path, *paths))
    assert sorted(images.paths) == sorted(paths)
    assert images.labels is None
    assert images.classes is None


def test_hidden_files_and_folders_are_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/2.jpg", ".trash/3.jpg", "a/.thumbs/4.jpg", "b/._2.jpg", ".5.jpg")
    images = scan_folder(tmp_path)
    assert list(images.paths) == ["a/1.jpg", "b/2.jpg"]
    assert images.classes == ("a", "b")


def test_a_hidden_folder_that_the_user_names_is_searched(tmp_path: Path) -> None:
    assert list(scan_folder(touch(tmp_path / ".cache", "1.jpg")).paths) == ["1.jpg"]


def test_results_among_the_images_are_refused(tmp_path: Path) -> None:
    images = scan_folder(touch(tmp_path / "data", "a/0.png", "b/0.png"))
    for place in ("data", "data/runs/new", "other/../data/a"):
        with pytest.raises(UserError, match="name a place outside that folder"):
            refuse_among(images, tmp_path / place)
    for place in ("", "data-results", "data/../runs", "data/.runs/hidden"):
        refuse_among(images, tmp_path / place)
    (tmp_path / "list.txt").write_text("data/a/0.png\n", encoding="utf-8")
    refuse_among(read_list(tmp_path / "list.txt"), tmp_path / "data")  # which is not scanned


def test_pictures_of_results_are_no_images(tmp_path: Path) -> None:
    ours = ["knn.json", "knn.confusion.png", "x.json", "x.severity.png", "x.y.json", "x.y.layers.png", "d.json"]
    ours += ["d.masks.png", "c/clusters.json", "c/sizes.png", "run/recipe.json", "run/curves.png"]
    ours += ["all/comparison.json", "all/comparison.csv", "all/comparison.png", "run/references.png"]
    ours += ["study/table.md", "study/table.csv", "study/picture.png"]
    ours += ["found/run.json", "found/pictures/7.png", "found/pictures/sheet.png"]
    theirs = ["1.png", "2.confusion.png", "c/2.png", "knn.png", "knn.masks.jpg", "sizes.png", "x.y.z.masks.png"]
    theirs += ["picture.png", "references.png", "pictures/1.png", "pictures/sheet.png", "found/pictures/7.jpg"]
    images = scan_folder(touch(tmp_path, *ours, *theirs))
    assert list(images.paths) == sorted(theirs)
    counted = {entry.reason: entry.count for entry in images.ledger.entries}
    assert counted == {"pictures of results": 11, ".json": 8, ".csv": 2, ".md": 1}
    assert list(scan_folder(tmp_path / "found" / "pictures").paths) == ["7.jpg", "7.png", "sheet.png"]


def test_only_files_with_an_images_ending_are_found(tmp_path: Path) -> None:
    good = [
        "1.jpg",
        "2.JPEG",
        "3.Png",
        "4.webp",
        "5.bmp",
        "6.gif",
        "7.tif",
        "8.TIFF",
        "9.ppm",
        "a.pgm",
        "b.jp2",
        "c.avif",
    ]
    touch(tmp_path, *good, "notes.txt", "jpg", "1.jpg.part", "list.csv")
    (tmp_path / "folder.jpg").mkdir()
    assert list(scan_folder(tmp_path).paths) == sorted(good)


def test_order_depends_on_names_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [f"{folder}/{number}.jpg" for folder in ("b", "a-b", "a", "ä", "B") for number in ("10", "9", "é", "A")]
    touch(tmp_path, *paths)
    expected = scan_folder(tmp_path)
    assert list(expected.paths) == sorted(paths)

    monkeypatch.setattr(os, "scandir", shuffled(os.scandir))
    again = scan_folder(tmp_path)
    assert again.paths == expected.paths
    assert again.classes == expected.classes


def test_linked_folders_are_followed(tmp_path: Path) -> None:
    elsewhere = touch(tmp_path / "elsewhere", "x/1.jpg", "2.jpg")
    root = touch(tmp_path / "set", "a/3.jpg")
    (root / "b").symlink_to(elsewhere)
    (root / "a" / "4.jpg").symlink_to(elsewhere / "2.jpg")
    images = scan_folder(root)
    assert list(images.paths) == ["a/3.jpg", "a/4.jpg", "b/2.jpg", "b/x/1.jpg"]
    assert images.classes == ("a", "b")


@pytest.mark.parametrize(
    ("link", "target"), [("a/up", ".."), ("a/b/self", "."), ("a/b/far", "../.."), ("a/b/mid", "..")]
)
def test_links_back_into_the_tree_end(tmp_path: Path, link: str, target: str) -> None:
    touch(tmp_path, "a/1.jpg", "a/b/2.jpg", "c/3.jpg")
    (tmp_path / link).symlink_to(target)
    assert list(scan_folder(tmp_path).paths) == ["a/1.jpg", "a/b/2.jpg", "c/3.jpg"]


def test_links_that_meet_each_other_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a/1.jpg", "b/2.jpg")
    (tmp_path / "a" / "to_b").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "to_a").symlink_to(tmp_path / "a")
    images = scan_folder(tmp_path)
    assert sorted(Path(path).name for path in images.paths) == ["1.jpg", "2.jpg"]  # every file once
    monkeypatch.setattr(os, "scandir", shuffled(os.scandir))
    assert scan_folder(tmp_path).paths == images.paths


def test_a_missing_folder_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder") as error:
        scan_folder(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in one_line(error)
    with pytest.raises(UserError, match="no folder") as error:
        scan_folder(touch(tmp_path, "file.jpg") / "file.jpg")
    one_line(error)


def test_a_folder_without_images_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no image below") as error:
        scan_folder(touch(tmp_path, "a/notes.txt", ".hidden.jpg"))
    assert ".jpg" in one_line(error)  # says what it looked for


def test_a_tree_deeper_than_python_calls_itself(tmp_path: Path) -> None:
    folder = tmp_path
    for _ in range(1200):
        folder /= "d"
        folder.mkdir()
    (folder / "1.jpg").touch()
    (folder / "up").symlink_to(tmp_path)
    try:
        assert scan_folder(tmp_path).paths == ["d/" * 1200 + "1.jpg"]
    finally:  # Python's own `rmtree`, which pytest uses, calls itself for every level
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True, timeout=60)
