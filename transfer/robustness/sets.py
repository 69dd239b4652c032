"""Other test sets for a head: which classes of the head are right for each of their own classes."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from excb.console import plural
from excb.errors import UserError, nearest_name, require
from excb.files import json_text
from excb.files.foreign import read_bytes
from excb.images.image_set import Images, ledger_of
from excb.images.subset import Subset
from excb.ledger import NOTHING, Ledger
from excb.sources.source import Note

from ..data.changed import ChangedImages
from ..data.folders import images_with_labels, is_imagenet
from .options import is_mapped

_VALIDATION = re.compile(r"(?:.*/)?ILSVRC2012_val_(\d{8})\.\w+")
_IMAGENET_VALIDATION = 50_000
_SAY_LITTLE = ("images", "test", "train", "val")  # names of folders


@dataclass(frozen=True)
class OtherSet:
    """Labelled images with classes of their own."""

    name: str  # in figures
    images: Images  # those of classes that the head knows
    right: Tensor  # [K, C] bool: the head's classes that are right for each own class
    ledger: Ledger = NOTHING  # what the search for its images left out

    @property
    def targets(self) -> Tensor:
        """Which of the head's classes are right for every image, [Q, C] bool."""
        assert self.images.labels is not None
        return self.right[torch.from_numpy(self.images.labels)]

    @property
    def candidates(self) -> Tensor:
        """The head's classes that are right for some class here, [C] bool."""
        return self.right.any(0)

    @property
    def same(self) -> Tensor:
        """Which of the head's classes this set does not distinguish, [C, C] bool: those of one own class."""
        right = self.right.float()
        return right.T @ right > 0

    def settings(self) -> dict[str, Any]:
        """The settings that its figures depend on beside the images."""
        digest = hashlib.sha256(np.packbits(self.right.numpy()).tobytes()).hexdigest()[:16]
        return {"classes": int(self.right.any(1).sum()), "class_map": digest}


def open_set(
    text: str,
    classes: Sequence[str],
    *,
    border: int = 0,
    convert: Callable[[Images], Images] = lambda images: images,
    note: Note = lambda _line: None,
) -> OtherSet:
    """A set of images by class folders, whose names are classes of the train set, or by a map of names.

    Folders that are numbers are indices into ImageNet's classes where the train set has these (ImageNet-V2).

    Args:
        text: DIR, shards, or DIR=MAP.json with an object of own class -> a class of the train set, several in a list,
            or names of ImageNet's classes with "; " between them, as ObjectNet has them. Case and punctuation of own
            classes do not matter.
        classes: of the train set.
        border: pixels that are cut off on each side of the images of a set with a map, such as ObjectNet's red frame.
        convert: gives the images on the mapping of stored values that the train images have.
        note: called with messages for the user.

    Raises:
        UserError: the set or its map cannot be used, or it has no class in common with the train set.
    """
    folder, _, file = text.rpartition("=")
    mapped = is_mapped(text)
    place = folder if mapped else text
    images = convert(images_with_labels(place, note))
    ledger = ledger_of(images)
    own = images.classes or ()
    table = _named_classes(Path(file), classes) if mapped else _same_classes(own, classes)
    right = torch.zeros(len(own), len(classes), dtype=torch.bool)
    for row, name in enumerate(own):
        right[row, table.get(_plain(name) if mapped else name, [])] = True
    assert images.labels is not None
    kept = np.flatnonzero(right.any(1).numpy()[images.labels])
    if not len(kept):
        few, there = (", ".join(names[:3]) for names in (own, classes))
        raise UserError(f"{place} has no class of the train set: its classes are {few} ..., not {there} ...")
    if len(kept) < len(images):
        lost = int((~right.any(1)).sum())
        note(
            f"{place}: {plural(len(images) - len(kept), 'image')} of {plural(lost, 'class', 'classes')} that the "
            f"train set lacks are left out, {len(kept):,} of {plural(len(own) - lost, 'class', 'classes')} remain"
        )
    framed: Images = _Inner(images, border) if mapped and border else images
    chosen = framed if len(kept) == len(images) else Subset(framed, kept)
    return OtherSet(_figure_name(place), chosen, right, ledger)


def multiple_labels(file: Path, test: Images, classes: Sequence[str]) -> Tensor:
    """Every class that is right for each test image, [Q, C] bool, from ReaL's file or one like it.

    Args:
        file: a list of 50,000 lists of class indices in the order of ImageNet's validation images (Beyer et al., 2020),
            or an object of image -> classes or indices; an image is named by its path or its file name. Images without
            a class do not count.
        test: the test images.
        classes: of the train set.

    Raises:
        UserError: the file cannot be read, or has no class for any of these images.
    """
    values = _read_json(file)
    if isinstance(values, list):
        require(
            len(values) == _IMAGENET_VALIDATION and is_imagenet(classes),
            f"{file} is a list of {len(values):,}: a list must have ImageNet's {_IMAGENET_VALIDATION:,} validation "
            "images, and the train set its 1,000 classes; write an object NAME -> CLASSES instead",
        )
        numbers = [_VALIDATION.fullmatch(path) for path in test.paths]
        labels = [values[int(number[1]) - 1] if number is not None else [] for number in numbers]
    else:
        require(isinstance(values, dict), f"{file} is neither a list nor an object of images")
        labels = [values.get(path, values.get(path.rpartition("/")[2], [])) for path in test.paths]
    index: dict[Any, int] = {name: number for number, name in enumerate(classes)}
    index |= {number: number for number in range(len(classes))}
    right = torch.zeros(len(labels), len(classes), dtype=torch.bool)
    for row, own in enumerate(labels):
        for label in own if isinstance(own, list) else [own]:
            require(
                isinstance(label, int | str) and label in index,
                f"{file} has the class {label!r} for {test.paths[row]}, which the train set lacks",
            )
            right[row, index[label]] = True
    require(bool(right.any()), f"{file} has a class for none of the test images, such as {test.paths[0]}")
    return right


def _same_classes(own: Sequence[str], classes: Sequence[str]) -> dict[str, list[int]]:
    if is_imagenet(classes) and all(name.isascii() and name.isdecimal() for name in own):
        return {name: [int(name)] for name in own if int(name) < len(classes)}
    return {name: [number] for number, name in enumerate(classes)}


def _named_classes(file: Path, classes: Sequence[str]) -> dict[str, list[int]]:
    """The classes that a map's file names, by plain own name."""
    values = _read_json(file)
    require(isinstance(values, dict), f"{file} is not an object of own class -> class of the train set")
    known: dict[str, list[int]] = {}
    for number, name in enumerate(classes):
        for alias in {name, *_descriptions().get(name, ())}:
            known.setdefault(alias, []).append(number)
    table = {}
    for own, value in values.items():
        names = value if isinstance(value, list) else [value]
        parts = [part for name in names for part in ([name] if name in known else str(name).split("; "))]
        for part in parts:
            require(part in known, f"{file}: {own} is {part!r}, no class of the train set{nearest_name(part, known)}")
        table[_plain(own)] = [number for part in parts for number in known[part]]
    return table


def _descriptions() -> Mapping[str, tuple[str, ...]]:
    """Names of ImageNet's class folders: "n02769748" is "backpack, back pack, knapsack, ..."."""
    from timm.data import ImageNetInfo

    names = ImageNetInfo()
    return {folder: (names.label_name_to_description(folder),) for folder in names.label_names()}


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _figure_name(place: str) -> str:
    """The folder's name as part of a figure's, with the folder above it where it says little."""
    path = Path(place)
    name = f"{path.parent.name}_{path.name}" if path.name in _SAY_LITTLE else path.name
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "other"


def _read_json(file: Path) -> Any:
    try:
        return json_text.parse(read_bytes(file))
    except OSError as error:
        raise UserError(f"cannot read {file}: {error}") from None
    except (ValueError, json.JSONDecodeError) as error:
        raise UserError(f"{file} is not JSON ({error})") from None


@dataclass(frozen=True)
class _Inner(ChangedImages):
    """Images without their frame."""

    border: int  # pixels on each side

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.whole.fingerprint} without {self.border}".encode()).hexdigest()

    def open(self, index: int) -> Image.Image:
        image = self.whole.open(index)
        assert isinstance(image, Image.Image)  # colours alone come here
        edge = min(self.border, (min(image.size) - 1) // 2)
        return image.crop((edge, edge, image.width - edge, image.height - edge))
