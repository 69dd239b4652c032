"""torchvision's data sets with a train and a test split: images of one array, or lists of files."""

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image, fromarray

from excb.errors import UserError, nearest_name, one_line
from excb.images.decoding import to_rgb
from excb.images.image_set import Images, ImageSet
from excb.ledger import NOTHING, Ledger
from excb.remote.home import expanded
from excb.sources.source import Note, NumberedImages, SetSource, Split, rank0_then_all

# torchvision's names of the train splits and of the test split. Sets without a test split are left out.
SETS: dict[str, tuple[tuple[str | bool, ...], str | bool]] = {
    "CIFAR10": ((True,), False),
    "CIFAR100": ((True,), False),
    "Country211": (("train", "valid"), "test"),
    "DTD": (("train", "val"), "test"),
    "FashionMNIST": ((True,), False),
    "FGVCAircraft": (("trainval",), "test"),
    "Flowers102": (("train", "val"), "test"),
    "Food101": (("train",), "test"),
    "Imagenette": (("train",), "val"),
    "KMNIST": ((True,), False),
    "MNIST": ((True,), False),
    "OxfordIIITPet": (("trainval",), "test"),
    "RenderedSST2": (("train", "val"), "test"),
    "StanfordCars": (("train",), "test"),
    "STL10": (("train",), "test"),
    "SVHN": (("train",), "test"),
}
WITH_UNLABELLED = {"STL10": "train+unlabeled"}  # torchvision's names of splits that need no labels


@dataclass(frozen=True)
class ArrayImages(NumberedImages):
    """Images that one array holds."""

    root: Path | str  # name of the source
    split: Split  # train or test; the images are called "train/00000", "train/00001",
    array: np.ndarray  # uint8, [N, H, W, 3] or grey [N, H, W]
    labels: np.ndarray | None  # class indices, int64 [N]
    classes: tuple[str, ...] | None  # class names
    ledger: Ledger = field(default=NOTHING, compare=False)  # doubts about the set

    def __len__(self) -> int:
        """Number of images."""
        return len(self.array)

    def source(self, index: int) -> io.BytesIO:
        """One image as a PPM or PGM file, which is its pixels behind a short header."""
        pixels = self.array[index]
        height, width = pixels.shape[:2]
        return io.BytesIO(b"P%d %d %d 255\n" % (5 if pixels.ndim == 2 else 6, width, height) + pixels.tobytes())

    def open(self, index: int) -> Image:
        """One image as RGB."""
        return to_rgb(fromarray(self.array[index]))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all pixels and labels."""
        digest = hashlib.sha256(repr(self.array.shape).encode())
        digest.update(np.ascontiguousarray(self.array).data)
        if self.labels is not None:
            digest.update(self.labels.astype("<i8").tobytes())
        return digest.hexdigest()


def torchvision_name(text: str) -> str | None:
    """A data set's name in torchvision's spelling, from any case; None if it has none."""
    return next((name for name in SETS if name.lower() == text.lower()), None)


def sets_root(root: Path | None) -> Path:
    """The folder of torchvision's data sets: the one given, else $EXCB_DATA, else ~/.cache/excb/datasets."""
    return root or expanded(os.environ.get("EXCB_DATA") or "~/.cache/excb/datasets", "EXCB_DATA")


def open_torchvision(text: str, split: Split, root: Path | None, note: Note, *, download: bool = True) -> Images:
    """A split of a data set of torchvision: an array if torchvision keeps one, else files.

    Args:
        text: the data set's name, in any case.
        split: which images.
        root: as `sets_root`; for downloads too.
        note: called with messages for the user.
        download: get the set if it is not on disk.

    Raises:
        UserError: there is no such set, or it cannot be loaded.
    """
    name = _known(text)
    train, test = SETS[name]
    return _open(name, split, train if split == "train" else (test,), root, note if download else None)


def training_torchvision(text: str, root: Path | None, note: Note) -> "ArrayImages | ImageSet":
    """The training images of a data set of torchvision, those without labels among them.

    Raises:
        UserError: as `open_torchvision`.
    """
    name = _known(text)
    if (part := WITH_UNLABELLED.get(name)) is None:
        return _open(name, "train", SETS[name][0], root, note)
    return replace(_open(name, "train", (part,), root, note), labels=None, classes=None)


def _known(text: str) -> str:
    """The name of a data set in torchvision's spelling; raises UserError if there is none."""
    if (name := torchvision_name(text)) is None:
        hint = nearest_name(text.upper(), map(str.upper, SETS))
        missing = f"no torchvision:{text}{hint}" if text else "torchvision: needs a data set's name"
        raise UserError(f"{missing} (with train and test there are {', '.join(SETS)})")
    return name


def _open(
    name: str, split: Split, parts: Sequence[str | bool], root: Path | None, note: Note | None
) -> "ArrayImages | ImageSet":
    """Parts of a data set; without a `note` they have to be on the disk."""
    root = sets_root(root)
    sets = rank0_then_all(lambda: [_load(name, part, root, note) for part in parts])
    return _arrays(name, split, sets[0]) if hasattr(sets[0], "data") else _files(sets, root)


def _load(name: str, part: str | bool, root: Path, note: Note | None) -> Any:
    """torchvision's data set, downloaded if it is not on disk, unless there is no `note` to say so."""
    from torchvision import datasets

    build = getattr(datasets, name)
    options: dict[str, Any] = {"train": part} if isinstance(part, bool) else {"split": part}
    if not isinstance(part, bool) and name not in ("OxfordIIITPet", "STL10", "SVHN"):
        options["loader"] = Path  # items are then (file, label): listing them opens no image
    try:
        return build(root, **options)
    except (RuntimeError, OSError):
        if note is None:
            raise UserError(f"torchvision:{name} is not in {root}, or not all of it") from None
        note(f"downloading {name} to {root}")
    try:
        return build(root, download=True, **options)
    except (RuntimeError, OSError, ValueError) as error:
        raise UserError(
            f"torchvision:{name} is not in {root} and cannot be downloaded ({one_line(error)}): put it there, or name "
            "the folder that holds it with EXCB_DATA=DIR, or excb-eval's --data-root DIR"
        ) from None


def _arrays(name: str, split: Split, data: Any) -> ArrayImages:
    pixels = np.asarray(data.data)
    if name in ("STL10", "SVHN"):  # [N, 3, H, W]
        pixels = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
    labels = np.asarray(data.targets if hasattr(data, "targets") else data.labels).astype(np.int64)
    return ArrayImages(Path(f"torchvision:{name}"), split, pixels, labels, _class_names(data, labels))


def _files(sets: Sequence[Any], root: Path) -> ImageSet:
    """Files and labels of one or several splits, concatenated."""
    pairs: list[tuple[Any, int]] = []
    for data in sets:
        # Of these sets, only Pets has no `loader` that could return the file.
        listed = hasattr(data, "loader")
        pairs += [data[i] for i in range(len(data))] if listed else zip(data._images, data._labels, strict=True)
    paths = [Path(file).relative_to(root).as_posix() for file, _ in pairs]
    labels = np.array([label for _, label in pairs], dtype=np.int64)
    return ImageSet(root, paths, labels, _class_names(sets[0], labels))


def _class_names(data: Any, labels: np.ndarray) -> tuple[str, ...]:
    """torchvision's class names; numbers for sets without names."""
    names = getattr(data, "classes", None) or range(int(labels.max()) + 1)
    return tuple(str(name) for name in names)


SOURCE = SetSource("torchvision", "torchvision:NAME", open_torchvision, torchvision_name, training_torchvision)
