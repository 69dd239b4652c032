"""Images with a set of labels each: VOC 2007's files, COCO's categories, or lists that a user writes."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from excb.errors import UserError, require
from excb.images.image_set import Images, ImageSet
from excb.ledger import NOTHING, Ledger
from excb.sources.source import Note, SetSource, Split

from .multilabel_layouts import LAYOUTS, Known

PRESENT = 1
PREFIX = "multilabel"


@dataclass(frozen=True)
class MultiLabelImages(ImageSet):
    """Images that may be of several classes or of none; `labels` is None.

    Attributes:
        targets: int8 [N, C]: 1 where an image is of a class, 0 where it is not, and -1 where that is ignored, in
            training and in evaluation: VOC's class that has difficult objects only, COCO's that has crowds only.
    """

    targets: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int8))

    @classmethod
    def of(
        cls,
        root: Path,
        known: Mapping[str, Mapping[str, int]],
        classes: Sequence[str],
        ledger: Ledger = NOTHING,
    ) -> "MultiLabelImages":
        """Images below a folder by what is known of each: class -> 1 or -1; it is of no other class."""
        paths, number = sorted(known), {name: index for index, name in enumerate(classes)}
        targets = np.zeros((len(paths), len(classes)), np.int8)
        for row, path in enumerate(paths):
            for name, value in known[path].items():
                targets[row, number[name]] = value
        return cls(root, paths, None, tuple(classes), targets=targets, ledger=ledger)

    @property
    def fingerprint(self) -> str:
        """A hash of the list of files and their sets of labels."""
        digest = hashlib.sha256(super().fingerprint.encode())
        digest.update(repr((self.classes, self.targets.shape)).encode())
        digest.update(np.ascontiguousarray(self.targets).tobytes())
        return digest.hexdigest()


def open_multilabel(text: str, split: Split, _root: Path | None, _note: Note) -> MultiLabelImages:
    """One split of a folder in any of the layouts of `multilabel_layouts`.

    Args:
        text: the folder.
        split: which images.

    Raises:
        UserError: the folder has none of the layouts, or its files are wrong.
    """
    folder = Path(text)
    missing = f"no folder {folder}" if text else f"{SOURCE.prefix}: needs a folder"
    require(bool(text) and folder.is_dir(), f"{missing}: {SOURCE.form} names one of images with several labels")
    for layout in LAYOUTS:
        if (known := layout.read(folder, split)) is not None:
            return _checked(known)
    forms = "; ".join(layout.form for layout in LAYOUTS)
    raise UserError(f"{folder} has no sets of labels of its {split} images: it needs {forms}")


def _checked(known: Known) -> MultiLabelImages:
    images = MultiLabelImages.of(known.root, known.labels, known.classes, known.ledger)
    require(len(images) > 0, f"{known.source} names no image")
    gone = next((path for path in images.paths if not (known.root / path).is_file()), None)
    require(
        gone is None, f"{known.source} names {gone}, which is not in {known.root}: put it there, or remove its line"
    )
    require(bool((images.targets == PRESENT).any()), f"{known.source} gives no image a class: is it the right file?")
    return images


def has_label_sets(images: Images) -> bool:
    """Whether each image has a set of labels, not one class."""
    return isinstance(images, MultiLabelImages)


SOURCE = SetSource(PREFIX, f"{PREFIX}:DIR", open_multilabel)
