"""Tests of images with a set of labels each: three layouts, what is ignored, and every mistake on one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from excb.errors import UserError
from excb.transfer.data.multilabel import MultiLabelImages
from excb.transfer.data.sources import open_source, train_and_test
from tests.transfer.multilabel_images import CLASSES, draw, write_image, write_lists, write_voc


def opened(folder: Path) -> tuple[MultiLabelImages, MultiLabelImages]:
    train, test = train_and_test(f"multilabel:{folder}")
    assert isinstance(train, MultiLabelImages)
    assert isinstance(test, MultiLabelImages)
    return train, test


def targets_of(labels: list[set[str]]) -> np.ndarray:
    return np.array([[int(name in own) for name in CLASSES] for own in labels])


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_lists_beside_folders(tmp_path: Path, suffix: str) -> None:
    train, test = opened(write_lists(tmp_path, suffix=suffix))
    assert train.classes == test.classes == CLASSES
    assert train.labels is None
    np.testing.assert_array_equal(train.targets, targets_of(draw(30, 0)))
    np.testing.assert_array_equal(test.targets, targets_of(draw(18, 1)))
    assert test.open(0).size == (32, 32)
    again = opened(tmp_path)[1]
    assert again.fingerprint == test.fingerprint
    file = tmp_path / f"test.{suffix}"
    file.write_text(file.read_text().replace("red", "green"), encoding="utf-8")
    assert opened(tmp_path)[1].fingerprint != test.fingerprint


def test_a_class_that_is_unsure_is_ignored(tmp_path: Path) -> None:
    write_lists(tmp_path)
    lines = (tmp_path / "test.csv").read_text().splitlines()
    (tmp_path / "test.csv").write_text("\n".join(["000.png,?red, blue", *lines[1:]]), encoding="utf-8")
    assert opened(tmp_path)[1].targets[0].tolist() == [1, 0, -1]


def test_voc_as_torchvision_lays_it_out_with_its_difficult_objects(tmp_path: Path) -> None:
    train, test = opened(write_voc(tmp_path))
    assert (len(train), len(test), train.classes) == (20, 12, CLASSES)
    for images, labels in ((train, draw(20, 0)), (test, draw(12, 1))):
        expected = targets_of(labels)
        expected[3, 2] = -1
        np.testing.assert_array_equal(images.targets, expected)
    assert train.paths[0] == "trainval0000.jpg"
    inner = opened(tmp_path / "VOCdevkit" / "VOC2007")
    assert inner[0].fingerprint == train.fingerprint


def test_coco_has_the_categories_of_each_images_objects(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    (tmp_path / "annotations").mkdir()
    for part in ("train", "val"):
        for name in ("a.png", "b.png", "c.png"):
            write_image(tmp_path / f"{part}2017" / name, set(), random)
        objects = [(1, 9, 0), (1, 9, 0), (1, 2, 1), (2, 2, 1), (2, 2, 0)]  # image, category, crowd
        content = {
            "images": [{"id": number, "file_name": name} for number, name in enumerate(("a.png", "b.png", "c.png"), 1)],
            "categories": [{"id": 9, "name": "ant"}, {"id": 2, "name": "bee"}],
            "annotations": [{"image_id": i, "category_id": c, "iscrowd": crowd} for i, c, crowd in objects],
        }
        (tmp_path / "annotations" / f"instances_{part}2017.json").write_text(json.dumps(content), encoding="utf-8")
    train, _ = opened(tmp_path)
    assert train.classes == ("bee", "ant")  # by their ids
    assert train.targets.tolist() == [[-1, 1], [1, 0], [0, 0]]


def write_exported(root: Path, annotations: list[dict[str, Any]], *, images: list[dict[str, Any]]) -> None:
    """A set as Roboflow exports it, with file names and ids as people have them."""
    for part in ("train", "valid"):
        for name in ("a.png", "b c.png", "unlisted.png"):
            write_image(root / part / name, set(), np.random.default_rng(0))
        (root / part / "notes.txt").write_text("words")
        categories = [{"id": "0", "name": "things"}, {"id": "1", "name": "ant"}, {"id": "2", "name": "bee"}]
        content = {"images": images, "categories": categories, "annotations": annotations}
        (root / part / "_annotations.coco.json").write_text(json.dumps(content), encoding="utf-8")


def test_coco_is_read_as_detection_reads_it(tmp_path: Path) -> None:
    images: list[dict[str, Any]] = [{"id": 1.0, "file_name": "C:\\mine\\a.png"}, {"id": "2", "file_name": "b%20c.png"}]
    objects: list[dict[str, Any]] = [
        {"image_id": 1, "category_id": "1", "iscrowd": "0"},
        {"image_id": "2", "category_id": 2.0, "iscrowd": True},
    ]
    write_exported(tmp_path, objects, images=images)
    train, test = opened(tmp_path)
    assert train.paths == ["a.png", "b c.png"]
    assert train.targets.tolist() == test.targets.tolist() == [[0, 1, 0], [0, 0, -1]]
    assert [(entry.reason, entry.count) for entry in train.ledger.entries] == [
        (".json", 1),
        (".txt", 1),
        ("images that _annotations.coco.json does not list", 1),
    ]
    write_exported(tmp_path, [*objects, {"image_id": 9, "category_id": 1}], images=images)
    with pytest.raises(UserError, match=r"objects of images that are not listed: 1 \(annotations\[2\]\)"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("test.csv", "000.png,red\n000.png,blue", "names 000.png more than once"),
        ("test.csv", "999.png,red", "names 999.png, which is not in"),
        ("test.csv", "../x.png,red", "is not a path below test/"),
        ("test.csv", "", "names no image"),
        ("test.csv", "000.png", "gives no image a class"),
        ("test.json", '["000.png"]', "every image with the list of its classes"),
        ("test.json", "{", "cannot read"),
        ("annotations/instances_val2017.json", '{"images": []}', "has no list of 'annotations'"),
        ("VOCdevkit/VOC2007/ImageSets/Main/red_test.txt", "000012 2", "line 1: not an image and 1, 0 or -1"),
        ("VOCdevkit/VOC2007/ImageSets/Main/red_trainval.txt", "", "unpack VOCtest_06-Nov-2007.tar"),
    ],
)
def test_mistakes_in_the_files_are_told(tmp_path: Path, file: str, text: str, message: str) -> None:
    write_lists(tmp_path)
    if file.endswith(".json"):
        (tmp_path / "test.csv").unlink()
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        open_source(f"multilabel:{tmp_path}", "test")
    assert message in str(caught.value)


def test_a_folder_without_sets_of_labels_is_told_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"it needs VOCdevkit/VOC2007/ImageSets/Main; .* train.csv and test.csv"):
        open_source(f"multilabel:{tmp_path}", "train")
    with pytest.raises(UserError, match="no folder"):
        open_source(f"multilabel:{tmp_path}/nothing", "train")
