"""Sets whose splits are not torchvision's: their files lie where torchvision puts them, their split is the papers'."""

from pathlib import Path

import numpy as np

from excb.console import plural
from excb.errors import UserError, require
from excb.files.csv_text import read_listing
from excb.images.image_set import Images, ImageSet
from excb.images.subset import Subset
from excb.seeding import Purpose, generator
from excb.sources.source import Note
from excb.sources.torchvision_sets import open_torchvision

from ..data.classes import labelled_folder
from ..data.multilabel import open_multilabel

CALTECH_TRAIN = 30  # images of each class
_SUN_LISTS = ("Training_01.txt", "Testing_01.txt")


def torchvision_set(name: str, root: Path, note: Note) -> tuple[Images, Images]:
    """Train and test images as torchvision has them; train and validation images together are for training.

    Raises:
        UserError: they are not there; nothing is downloaded.
    """
    train, test = (open_torchvision(name, part, root, note, download=False) for part in ("train", "test"))
    return train, test


def voc2007(root: Path, note: Note) -> tuple[Images, Images]:
    """trainval and test of VOC 2007 with sets of labels.

    Raises:
        UserError: they are not there.
    """
    base = root / "VOCdevkit" / "VOC2007"
    require(base.is_dir(), f"no folder {base}")
    return open_multilabel(str(base), "train", None, note), open_multilabel(str(base), "test", None, note)


def caltech101(root: Path, _note: Note) -> tuple[Images, Images]:
    """30 images of each of 102 folders, drawn by seed 0, and all others: 3,060 and 6,084, as Kornblith et al.

    Raises:
        UserError: they are not there, or a class has too few.
    """
    folder = root / "caltech101" / "101_ObjectCategories"
    require(folder.is_dir(), f"no folder {folder}")
    images = labelled_folder(folder)
    assert images.labels is not None
    train = np.zeros(len(images), bool)
    for label, name in enumerate(images.classes or ()):
        members = np.flatnonzero(images.labels == label)
        require(
            len(members) > CALTECH_TRAIN,
            f"{folder / name} has {plural(len(members), 'image')}: the set is not complete",
        )
        train[generator(Purpose.SPLIT, 0, label, 3).permutation(members)[:CALTECH_TRAIN]] = True
    return Subset(images, np.flatnonzero(train)), Subset(images, np.flatnonzero(~train))


def sun397(root: Path, _note: Note) -> tuple[Images, Images]:
    """The first of the authors' ten partitions: 50 images of each of 397 classes for training, 50 for the test.

    Raises:
        UserError: the images or the partition's lists are not there.
    """
    folder = root / "SUN397"
    require(folder.is_dir(), f"no folder {folder}")
    parts = [_sun_list(folder, name) for name in _SUN_LISTS]
    classes = tuple(sorted({path.rpartition("/")[0] for paths in parts for path in paths}))
    index = {name: number for number, name in enumerate(classes)}
    train, test = (
        ImageSet(folder, paths, np.array([index[path.rpartition("/")[0]] for path in paths]), classes)
        for paths in parts
    )
    return train, test


def _sun_list(folder: Path, name: str) -> list[str]:
    """The paths of a partition, which its lists write as /a/abbey/sun_aaalbzqrimafwbiv.jpg."""
    file = next((place for place in (folder / name, folder / "Partitions" / name) if place.is_file()), None)
    if file is None:
        raise UserError(f"no list {folder / name}: it is in Partitions.zip of the set's page")
    paths = sorted(line.strip().lstrip("/") for line in read_listing(file, "utf-8").splitlines() if line.strip())
    gone = next((path for path in paths if not (folder / path).is_file()), None)
    require(gone is None, f"{file} names {gone}, which is not in {folder}")
    return paths
