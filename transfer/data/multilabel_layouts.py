"""Layouts of images with a set of labels each: what each one's files say of the images of a split."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excb.errors import UserError, require
from excb.files import json_text
from excb.files.csv_text import read_listing, read_rows
from excb.files.foreign import read_bytes
from excb.ledger import NOTHING, Ledger
from excb.sources.source import Split

from ..coco.reading import TRAIN_AND_TEST, files_beside, layout_place, read_labels

VOC_FOLDERS = ("VOCdevkit/VOC2007", "VOC2007", ".")  # the first is torchvision's
_VOC_PARTS: dict[Split, str] = {"train": "trainval", "test": "test"}
_HELD_OUT = {"train": ("train",), "test": ("test", "val")}
UNSURE = "?"  # before a class in a list: ignored of this image


@dataclass(frozen=True)
class Known:
    """The labels that a file gives to images."""

    source: Path  # the file, or the folder of files
    root: Path  # of the images
    labels: Mapping[str, Mapping[str, int]]  # by path below the root: class -> 1, or -1 where it is ignored
    classes: Sequence[str]
    ledger: Ledger = NOTHING  # what else the folder of the images holds, and doubts about the file


@dataclass(frozen=True)
class MultilabelLayout:
    """One layout."""

    form: str  # what a folder has, for messages
    read: Callable[[Path, Split], Known | None]  # None where the folder has another layout; raises UserError


def voc(folder: Path, split: Split) -> Known | None:
    """VOC 2007 by its own lists, ImageSets/Main/CLASS_trainval.txt and CLASS_test.txt: 1, -1, or 0 for difficult."""
    bases = [folder / name for name in VOC_FOLDERS if (folder / name / "ImageSets" / "Main").is_dir()]
    if not bases:
        return None
    lists, part = bases[0] / "ImageSets" / "Main", _VOC_PARTS[split]
    files = {file.name.removesuffix(f"_{part}.txt"): file for file in sorted(lists.glob(f"*_{part}.txt"))}
    require(bool(files), f"{lists} has no CLASS_{part}.txt: unpack VOC{part}_06-Nov-2007.tar beside it")
    labels = defaultdict[str, dict[str, int]](dict)
    for name, file in files.items():
        for number, line in enumerate(_lines(file), start=1):
            words = line.split()
            fits = len(words) == 2 and words[1] in ("1", "0", "-1")
            require(fits, f"{file}, line {number}: not an image and 1, 0 or -1")
            own = labels[f"{words[0]}.jpg"]
            if words[1] != "-1":
                own[name] = 1 if words[1] == "1" else -1
    return Known(lists, bases[0] / "JPEGImages", labels, list(files))


def coco(folder: Path, split: Split) -> Known | None:
    """COCO's categories of the objects of each image; one of which an image has crowds only is ignored."""
    place = layout_place(folder, TRAIN_AND_TEST[split])
    if place is None:
        return None
    read = read_labels(*place)
    return Known(*place, read.labels, read.classes, read.ledger)


def lists(folder: Path, split: Split) -> Known | None:
    """A list beside the images: test.csv or test.json beside test/. Classes are those of all lists of the folder."""
    file = next((file for part in _HELD_OUT[split] for file in _list_files(folder, part)), None)
    if file is None:
        return None
    labels = _read_list(file)
    every = [_read_list(each) for parts in _HELD_OUT.values() for part in parts for each in _list_files(folder, part)]
    classes = sorted({name for one in every for own in one.values() for name in own})
    root = folder / file.stem
    beside = files_beside(root, labels.keys(), file) if root.is_dir() else NOTHING
    return Known(file, root, labels, classes, beside)


def _list_files(folder: Path, part: str) -> list[Path]:
    return [file for suffix in ("csv", "json") if (file := folder / f"{part}.{suffix}").is_file()]


def _read_list(file: Path) -> dict[str, dict[str, int]]:
    """NAME,CLASS,CLASS on every line of a CSV file, or {"NAME": ["CLASS", "CLASS"]} in JSON."""
    if file.suffix == ".json":
        content = _json(file)
        fits = isinstance(content, dict) and all(
            isinstance(own, list) and all(isinstance(name, str) for name in own) for own in content.values()
        )
        require(fits, f'{file}: write {{"NAME": ["CLASS", "CLASS"]}}, every image with the list of its classes')
        pairs = list(content.items())
    else:
        try:
            pairs = [(row[0].strip(), row[1:]) for row in read_rows(_lines(file)) if row]
        except ValueError as error:
            raise UserError(f"{file} is not a CSV file: {error}") from None
    labels: dict[str, dict[str, int]] = {}
    for path, names in pairs:
        require(path not in labels, f"{file} names {path} more than once: remove the repeats")
        below = not Path(path).is_absolute() and ".." not in Path(path).parts
        require(below, f"{file}: {path} is not a path below {file.stem}/")
        own = [name.strip() for name in names if name.strip()]
        labels[path] = {name.removeprefix(UNSURE): -1 if name.startswith(UNSURE) else 1 for name in own}
    return labels


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in read_listing(file).splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the list {file}: {error}") from None


def _json(file: Path) -> Any:
    try:
        return json_text.parse(read_bytes(file), bounded=False)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file}: {error}") from None


LAYOUTS = (
    MultilabelLayout("VOCdevkit/VOC2007/ImageSets/Main", voc),
    MultilabelLayout("annotations/instances_train2017.json and instances_val2017.json, as COCO", coco),
    MultilabelLayout(
        "train.csv and test.csv (or .json) beside train/ and test/, a line NAME,CLASS,CLASS for every image", lists
    ),
)
