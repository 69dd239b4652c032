"""Tests of the classes of labelled images: numbered as the train set's, unknown and renamed ones, and mistakes."""

from pathlib import Path

import pytest

from excb.errors import UserError
from excb.images.scanning import scan_folder
from excb.transfer.data.classes import labelled_folder, with_classes_of
from tests.transfer.labelled_images import write_folder


def test_test_images_take_the_train_sets_class_indices(tmp_path: Path) -> None:
    train = labelled_folder(write_folder(tmp_path / "train", each=1, classes=("ant", "bee", "dog", "gnu")))
    test = with_classes_of(scan_folder(write_folder(tmp_path / "test", each=2, classes=("bee", "gnu"))), train)
    assert test.classes == ("ant", "bee", "dog", "gnu")
    assert test.labels is not None
    assert test.labels.tolist() == [1, 1, 3, 3]
    assert list(test.paths) == ["bee/0.png", "bee/1.png", "gnu/0.tif", "gnu/1.png"]


def test_test_images_may_be_all_of_one_class(tmp_path: Path) -> None:
    train = labelled_folder(write_folder(tmp_path / "train", each=1, classes=("ant", "bee", "dog")))
    test = with_classes_of(scan_folder(write_folder(tmp_path / "test", each=2, classes=("dog",))), train)
    assert test.labels is not None
    assert test.labels.tolist() == [2, 2]


def test_unknown_classes_come_after_the_known_ones(tmp_path: Path) -> None:
    train = scan_folder(write_folder(tmp_path / "train", each=1, classes=("ant", "bee", "dog")))
    one = scan_folder(write_folder(tmp_path / "one", each=1, classes=("bee", "cow", "dog")))
    test = with_classes_of(one, train)
    assert test.labels is not None
    assert test.labels.tolist() == [1, 3, 2]
    assert test.classes == ("ant", "bee", "dog", "cow")


def test_renamed_classes_are_found(tmp_path: Path) -> None:
    train = scan_folder(write_folder(tmp_path / "train", each=1, classes=("ant", "bee", "dog")))
    one = scan_folder(write_folder(tmp_path / "one", each=1, classes=("bee", "cow", "dog")))
    test = with_classes_of(one, train, rename={"cow": "ant"})
    assert test.labels is not None
    assert test.labels.tolist() == [1, 0, 2]
    assert test.classes == train.classes
    with pytest.raises(UserError, match=r"one has no class cov; did you mean 'cow'\?"):
        with_classes_of(one, train, rename={"cov": "ant"})
    with pytest.raises(UserError, match=r"train has no class aunt; did you mean 'ant'\?"):
        with_classes_of(one, train, rename={"cow": "aunt"})


def test_mostly_unknown_classes_are_refused(tmp_path: Path) -> None:
    train = scan_folder(write_folder(tmp_path / "train", each=1, classes=("ant", "bee")))
    many = scan_folder(write_folder(tmp_path / "many", each=1, classes=("ant", "w", "x", "y", "z")))
    with pytest.raises(
        UserError, match=r"most images in .*many are of classes that .*train does not have \(w, x, y, \.\.\.\)"
    ):
        with_classes_of(many, train)


def test_train_images_of_one_class_only_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has one class only \(ant\): classification needs at least two"):
        labelled_folder(write_folder(tmp_path / "train", each=2, classes=("ant",)))
