"""Classes of labelled images: one folder each; a test set gets the train set's class indices."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from excb.console import few
from excb.errors import UserError, nearest_name
from excb.images.image_set import Images, ImageSet
from excb.images.shards import ShardImages
from excb.sources.label_files import scan_labelled
from excb.sources.source import Note

FixedImages = TypeVar("FixedImages", bound=ImageSet | ShardImages)


class OtherClassesError(UserError):
    """Train and test images do not have the classes that were expected of them."""


def labelled_folder(folder: Path, note: Note = lambda _line: None) -> ImageSet:
    """The images of a folder with one sub-folder per class, or the training images of a table of labels.

    Raises:
        UserError: there are fewer than two classes, or the table is wrong.
    """
    images = scan_labelled(folder, "train", note)
    if images.classes is not None and len(images.classes) < 2:
        raise UserError(f"{folder} has one class only ({images.classes[0]}): classification needs at least two")
    if images.labels is None:
        only, below, _ = images.paths[0].partition("/")
        if below and all(path.startswith(f"{only}/") for path in images.paths):
            raise UserError(f"{folder} has one class only ({only}): classification needs at least two")
        raise _no_classes(folder)
    return images


def unknown_classes(train: Images, test: Images) -> dict[str, int]:
    """Test images of every class that the train set lacks; of sets of labels, whose classes are train's, none."""
    if test.labels is None or test.labels.ndim > 1:
        return {}
    shared, names = len(train.classes or ()), test.classes or ()
    return {name: int((test.labels == shared + i).sum()) for i, name in enumerate(names[shared:])}


def with_classes_of(test: FixedImages, train: Images, *, rename: Mapping[str, str] | None = None) -> FixedImages:
    """The test set with the train set's class indices; some classes may have no test image.

    Classes that only the test set has are numbered after the train set's. No prediction can match them, so their images
    count as errors. `unknown_classes` counts them.

    Args:
        test: labelled by its folders or a table, or shards with labels.
        train: labelled images.
        rename: new names of test folders that are named differently in the train set.

    Raises:
        OtherClassesError: most images are of classes that the train set does not have, or a folder to rename does not
            exist.
        UserError: a test image is in no class folder.
    """
    assert train.classes is not None
    if test.labels is None:
        if any("/" not in path for path in test.paths):
            raise _no_classes(test.root)
        folders = [path.partition("/")[0] for path in test.paths]
    else:
        assert test.classes is not None
        folders = [test.classes[label] for label in test.labels]
    rename = rename or {}
    for old, new in rename.items():
        for name, classes_of, root in ((old, set(folders), test.root), (new, train.classes, train.root)):
            if name not in classes_of:
                raise OtherClassesError(
                    f"--rename {old}={new}: {root} has no class {name}{nearest_name(name, classes_of)}"
                )
    names = [rename.get(folder, folder) for folder in folders]
    unknown = sorted(set(names) - set(train.classes))
    if 2 * sum(name in unknown for name in names) > len(names):
        raise OtherClassesError(
            f"most images in {test.root} are of classes that {train.root} does not have ({few(unknown)}): both need "
            "the same folders"
        )
    classes = (*train.classes, *unknown)
    index = {name: number for number, name in enumerate(classes)}
    return replace(test, labels=np.array([index[name] for name in names]), classes=classes)


def _no_classes(folder: Path | str) -> UserError:
    return UserError(
        f"{folder} has no classes: put the images of each class into a sub-folder of its own, or write labels.csv "
        "there with the columns path and label"
    )
