"""Tests of other test sets: which classes are right, by folders, indices, maps and lists of several labels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from excb.errors import UserError
from excb.images.subset import Subset
from excb.transfer.data.classes import labelled_folder
from excb.transfer.robustness import sets
from excb.transfer.robustness.sets import multiple_labels, open_set
from tests.transfer.labelled_images import write_folder

CLASSES = ("ant", "bee", "cat", "dog")
WNIDS = ("n02769748", "n02708093", "n03196217", "n04548362")  # backpack, analog clock, digital clock, wallet


def test_folders_that_are_classes_of_the_train_set(tmp_path: Path) -> None:
    notes: list[str] = []
    write_folder(tmp_path / "Image-Net R", each=2, classes=("cat", "bee", "yak"))
    (tmp_path / "Image-Net R" / "cat" / "read.txt").write_text("words")
    other = open_set(str(tmp_path / "Image-Net R"), CLASSES, note=notes.append)
    assert [entry.counted for entry in other.ledger.entries] == ["1 .txt"]
    assert other.name == "image_net_r"
    assert len(other.images) == 4
    assert other.candidates.tolist() == [False, True, True, False]
    right = [[CLASSES[index] for index in row.nonzero()[:, 0].tolist()] for row in other.targets]
    assert right == [["bee"], ["bee"], ["cat"], ["cat"]]
    said = "2 images of 1 class that the train set lacks are left out, 4 of 2 classes remain"
    assert notes == [f"{tmp_path / 'Image-Net R'}: {said}"]
    with pytest.raises(UserError, match="has no class of the train set: its classes are bee, cat, yak"):
        open_set(str(tmp_path / "Image-Net R"), ("one", "two"))


def test_a_folder_whose_name_says_little_is_called_after_the_one_above(tmp_path: Path) -> None:
    write_folder(tmp_path / "objectnet-1.0" / "images", each=1, classes=("ant", "bee"))
    assert open_set(str(tmp_path / "objectnet-1.0" / "images"), CLASSES).name == "objectnet_1_0_images"


def test_numbers_are_indices_of_imagenets_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "v2", each=1, classes=("0", "2", "10"))
    with pytest.raises(UserError, match="has no class of the train set"):
        open_set(str(tmp_path / "v2"), CLASSES)
    monkeypatch.setattr(sets, "is_imagenet", lambda _classes: True)
    other = open_set(str(tmp_path / "v2"), [f"n{number:08}" for number in range(12)])
    assert other.targets.nonzero().tolist() == [[0, 0], [1, 10], [2, 2]]  # in the order of their paths


def test_a_map_names_classes_as_objectnet_does(tmp_path: Path) -> None:
    write_folder(tmp_path / "objects", each=1, classes=("alarm_clock", "backpack", "t-shirt", "wallet_(men)"))
    names = {
        "Alarm clock": "analog clock; digital clock",
        "Backpack": "backpack, back pack, knapsack, packsack, rucksack, haversack",
        "Wallet (men)": [WNIDS[3]],
    }
    (tmp_path / "map.json").write_text(json.dumps(names), encoding="utf-8")
    other = open_set(f"{tmp_path / 'objects'}={tmp_path / 'map.json'}", WNIDS)
    assert [list(other.images.paths)[index] for index in range(3)] == [
        "alarm_clock/0.png",
        "backpack/0.png",
        "wallet_(men)/0.png",
    ]
    assert other.targets.int().tolist() == [[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
    assert other.same.int().tolist() == [[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    assert other.settings()["classes"] == 3


def test_a_frame_is_cut_off(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        (tmp_path / "framed" / name).mkdir(parents=True)
        inner = Image.fromarray(np.random.default_rng(1).integers(0, 256, (9, 12, 3), dtype=np.uint8))
        framed = Image.new("RGB", (16, 13), "red")
        framed.paste(inner, (2, 2))
        framed.save(tmp_path / "framed" / name / "0.png")
    (tmp_path / "map.json").write_text('{"ant": "ant", "bee": "bee"}', encoding="utf-8")
    text = f"{tmp_path / 'framed'}={tmp_path / 'map.json'}"
    cut, whole = (open_set(text, CLASSES, border=border).images for border in (2, 0))
    assert np.array_equal(np.asarray(cut.open(0)), np.asarray(inner))
    assert whole.open(0).size == (16, 13)
    assert cut.fingerprint != whole.fingerprint
    assert (cut.stamp(0), cut.paths, cut.root) == (whole.stamp(0), whole.paths, whole.root)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "is not an object of own class"),
        ("{", "is not JSON"),
        ('{"ant": "antt"}', "did you mean 'ant'"),
        ('{"ant": 3}', "ant is '3', no class"),
    ],
)
def test_maps_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    write_folder(tmp_path / "set", each=1, classes=("ant", "bee"))
    (tmp_path / "map.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        open_set(f"{tmp_path / 'set'}={tmp_path / 'map.json'}", CLASSES)
    with pytest.raises(UserError, match="cannot read"):
        open_set(f"{tmp_path / 'set'}={tmp_path / 'none.json'}", CLASSES)


def labels(tmp_path: Path, values: Any) -> list[list[int]]:
    test = labelled_folder(write_folder(tmp_path / "test", each=2, classes=("ant", "bee")))
    file = tmp_path / "labels.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    right = multiple_labels(file, test, CLASSES)
    return [row.nonzero()[:, 0].tolist() for row in right]


def test_several_labels_by_name(tmp_path: Path) -> None:
    found = labels(tmp_path, {"ant/0.png": ["ant", "cat"], "ant/1.png": 3, "bee/0.png": []})
    assert found == [[0, 2], [3], [], []]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"ant/0.png": ["yak"]}, "has the class 'yak' for ant/0.png"),
        ({"ant/0.png": [4]}, "has the class 4"),
        ({"ant/0.png": [[1]]}, "has the class"),
        ({"cow.png": [1]}, "has a class for none of the test images"),
        ([[1], [2]], "is a list of 2: a list must have ImageNet's 50,000"),
        (3, "neither a list nor an object"),
    ],
)
def test_several_labels_that_cannot_be_used(tmp_path: Path, values: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        labels(tmp_path, values)


def test_reals_list_is_in_the_order_of_the_validation_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "is_imagenet", lambda _classes: True)
    for name, number in (("ant", 3), ("bee", 1), ("bee", 2)):
        (tmp_path / "val" / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "val" / name / f"ILSVRC2012_val_{number:08}.JPEG")
    values: list[list[int]] = [[1], [], [0, 2], *([[]] * 49_997)]
    (tmp_path / "real.json").write_text(json.dumps(values), encoding="utf-8")
    test = labelled_folder(tmp_path / "val")
    right = multiple_labels(tmp_path / "real.json", test, CLASSES)
    assert [row.nonzero()[:, 0].tolist() for row in right] == [[0, 2], [1], []]
    some = multiple_labels(tmp_path / "real.json", Subset(test, np.array([1])), CLASSES)
    assert some.nonzero().tolist() == [[0, 1]]
