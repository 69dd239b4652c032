"""Folders and tar shards of labelled images, including ImageNet's usual layouts."""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from excb.console import plural
from excb.errors import UserError, nearest_path, require
from excb.files.foreign import is_folder
from excb.images.image_set import Images, ImageSet
from excb.images.scanning import scan_folder
from excb.images.shards import ShardImages, open_shards
from excb.images.tars.places import holds_shards, is_shards
from excb.remote.byte_ranges import is_remote
from excb.sources.label_files import is_table, label_table, scan_labelled
from excb.sources.source import Note, Split

from .classes import labelled_folder, with_classes_of
from .label_lists import labelled_by_list, list_beside

# SHA-256 of ImageNet's 1,000 sorted class folders, one per line: the class order of every ImageNet classifier.
_IMAGENET = "385e0240499426c022b773be1ae4da780f057b89c9694c7f47199f62746b6edd"


def open_folder(folder: str, split: Split, note: Note) -> Images:
    """One split of a folder, or of a URL, that holds train/ and test/ (or val/).

    Raises:
        UserError: the split is missing or unusable.
    """
    if not is_remote(folder) and (table := label_table(folder)) is not None and table.has_splits:
        return table.images(split)
    require(not is_table(folder), f"{folder} has no column split: add one, or name two with --train CSV --test CSV")
    if split == "train":
        train = _below(folder, "train")
        require(
            is_remote(folder) or Path(train).is_dir(),
            f"no folder {train}: --data names a folder that holds train/ and test/ (or val/); name others with "
            f"--train DIR --test DIR{nearest_path(train)}",
        )
        return images_with_labels(train, note)
    held_out = held_out_place(folder)
    return open_shards(held_out, note) if is_shards(held_out) else scan_labelled(held_out, "test", note)


def images_below(folder: Path, note: Note) -> Images:
    """The images of a folder, labelled or not; those of train/ if it holds train/ beside test/ or val/."""
    if (folder / "train").is_dir() and any((folder / name).is_dir() for name in ("test", "val")):
        note(f"images of {folder / 'train'}: name another folder of {folder} for its other images")
        folder /= "train"
    return open_shards(str(folder), note) if is_shards(str(folder)) else scan_labelled(folder, None, note)


def held_out_place(folder: str) -> str:
    """The folder or URL of the test images: test/, or val/ if test/ is missing or has no labels, as in ImageNet."""
    if not is_remote(folder) and (table := label_table(folder)) is not None and table.has_splits:
        return folder
    test, val = _below(folder, "test"), _below(folder, "val")
    if is_remote(folder):
        return test if holds_shards(test) else val
    place = Path(test)
    labels = place.is_dir() and (_has_folders(place) or list_beside(place) or _has_table(place) or is_shards(test))
    return test if labels or (place.is_dir() and not Path(val).is_dir()) else val


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if is_remote(folder) else str(Path(folder) / name)


def _has_table(folder: Path) -> bool:
    return label_table(folder) is not None or folder.with_name(f"{folder.name}.csv").is_file()


def _has_folders(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(is_folder(entry) and not entry.name.startswith(".") for entry in entries)


def images_with_labels(folder: Path | str, note: Note) -> ImageSet | ShardImages:
    """Images of class folders or labelled shards, with classes ordered by number if all are numbers, else by name."""
    images = _labelled_shards(str(folder), note) if is_shards(str(folder)) else labelled_folder(Path(folder), note)
    assert images.labels is not None
    classes = images.classes or ()
    if all(name.isascii() and name.isdecimal() for name in classes):
        ordered = sorted(classes, key=lambda name: (int(name), name))
        if tuple(ordered) != classes:
            note(f"the classes in {folder} are numbers: their order is {ordered[0]}, {ordered[1]} ... {ordered[-1]}")
            index = np.array([ordered.index(name) for name in classes])
            return replace(images, labels=index[images.labels], classes=tuple(ordered))
    if are_wnids(classes) and not is_imagenet(classes):
        other = plural(len(classes), "class", "classes")
        note(f"{folder} has {other} other than ImageNet's 1,000: their indices follow their names")
    return images


def _labelled_shards(text: str, note: Note) -> ShardImages:
    images = open_shards(text, note)
    require(
        images.labels is not None,
        f"the images in {text} have no classes: shards need KEY.cls beside every KEY.jpg, or class folders",
    )
    return images


def is_imagenet(classes: Sequence[str]) -> bool:
    """Whether these are the class folders of ImageNet-1k in their usual order, so that published indices hold."""
    return hashlib.sha256("\n".join(classes).encode()).hexdigest() == _IMAGENET


def are_wnids(classes: Sequence[str]) -> bool:
    """Whether these are names of ImageNet's class folders."""
    return all(re.fullmatch(r"n\d{8}", name) for name in classes)


def test_images(place: Path | str, train: Images, rename: Mapping[str, str], note: Note) -> ImageSet | ShardImages:
    """Test images by class folders, by shards' labels, by a table or by a list, with the train set's class indices."""
    if is_shards(str(place)):
        return with_classes_of(_labelled_shards(str(place), note), train, rename=rename)
    folder = Path(place)
    images = scan_labelled(folder, "test", note) if list_beside(folder) is None else scan_folder(folder)
    if images.labels is None and not any("/" in path for path in images.paths):
        if (file := list_beside(folder)) is not None:
            require(not rename, f"--rename: the images in {folder} have no class folders, {file} gives their classes")
            return labelled_by_list(images, train, file)
        if are_wnids(train.classes or ()):
            raise UserError(
                f"{folder} has no class folders: put its images into them, or write {folder.name}.txt beside it with "
                "a line 'NAME INDEX' (0 to 999 in the order of the folders) or 'NAME FOLDER' for every image"
            )
    return with_classes_of(images, train, rename=rename)
