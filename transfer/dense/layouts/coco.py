"""COCO's instance annotations as classes of pixels: categories, or their super-categories; and background."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from excb.errors import UserError
from excb.images.decoding import BrokenImageError, open_image
from excb.images.image_set import HeldContents, held_source
from excb.images.pixels import Pixels, Source, notice_of

from ...coco.annotations import CocoSet
from ...coco.reading import LAYOUTS, TRAIN_AND_TEST, layout_place, read_coco
from .masks import IGNORED, MaskLayout, Split

BACKGROUND = "background"


@dataclass(frozen=True)
class CocoMasks:
    """A set in COCO's format. Class 0 is background.

    Objects are painted from the largest to the smallest, so that small ones stay visible. Pixels of crowds, and boxes
    of objects without a mask, do not count, where no other object covers them.
    """

    images: CocoSet
    classes: tuple[str, ...]
    numbers: tuple[int, ...]  # the class of every label of `images`
    labels: None = None
    held: HeldContents = field(default_factory=HeldContents, compare=False, repr=False)  # see `ImageSet`

    def __len__(self) -> int:
        return len(self.images)

    @property
    def root(self) -> Path:
        """The folder of the images."""
        return self.images.folder

    @property
    def pixels(self) -> Pixels:
        """See `ImageSet`."""
        return self.images.pixels

    def file(self, index: int) -> Path:
        """The file of one image."""
        return self.images.file(index)

    def source(self, index: int) -> Source:
        """See `CodedImages.source`."""
        return held_source(self, index)

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Files below the folder."""
        return tuple(image.file for image in self.images.images)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the annotation file and the classes."""
        return hashlib.sha256(f"{self.images.fingerprint} {self.classes}".encode()).hexdigest()

    def stamp(self, index: int) -> str:
        """See `Images.stamp`."""
        return self.images.stamp(index)

    def open(self, index: int) -> Image.Image:
        """See `Images.open`. Raises BrokenImageError also for an image of another size than annotated."""
        image: Image.Image = open_image(self.source(index), self.pixels, notice_of(self.images, index))
        if image.size != self.size(index):
            try:
                self.images.check_size(index)
            except UserError as error:
                raise BrokenImageError(str(error)) from None
        return image

    def size(self, index: int) -> tuple[int, int]:
        """See `MaskedImages.size`."""
        return self.images.images[index].size

    def mask(self, index: int) -> np.ndarray:
        """See `MaskedImages.mask`."""
        entry = self.images.images[index]
        mask = np.zeros((entry.height, entry.width), np.int16)
        same = np.ones(2)
        # Crowds and objects without a mask come first, so that others cover them.
        for annotation in sorted(entry.annotations, key=lambda one: (one.trainable, -one.area)):
            if isinstance(annotation.mask, dict) or annotation.polygons:
                where = annotation.mask_at(same, entry.height, entry.width, flip=False)
                mask[where] = self.numbers[annotation.label] if annotation.trainable else IGNORED
            else:
                left, top, width, height = annotation.box
                rows = slice(max(0, round(top)), max(0, round(top + height)))
                mask[rows, max(0, round(left)) : max(0, round(left + width))] = IGNORED
        return mask


def _open(root: Path, split: Split, *, parents: bool) -> CocoMasks:
    place = layout_place(root, TRAIN_AND_TEST[split])
    if place is None:
        expected = " or ".join(file.format(TRAIN_AND_TEST[split][0]) for file, _ in LAYOUTS)
        raise UserError(f"{root} has no {expected}")
    images = read_coco(*place)
    names = images.supercategories if parents else images.classes
    classes = (BACKGROUND, *dict.fromkeys(sorted(names) if parents else names))
    return CocoMasks(images, classes, tuple(map(classes.index, names)))


LAYOUT = MaskLayout(
    name="coco",
    title="COCO's instance annotations: background and the categories",
    ignored="crowds",
    matches=lambda root: layout_place(root, TRAIN_AND_TEST["train"]) is not None,
    open=lambda root, split: _open(root, split, parents=False),
)
SUPERCATEGORIES = MaskLayout(
    name="coco-super",
    title="the same with super-categories as classes",
    ignored="crowds",
    matches=lambda _root: False,  # the categories are the default
    open=lambda root, split: _open(root, split, parents=True),
)
