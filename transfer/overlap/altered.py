"""Altered images: mirrored ones, and copies that calibration plants (crops, strong JPEG compression, flips)."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image

from excb.images.image_set import Images
from excb.images.subset import Subset
from excb.seeding import Purpose, generator

from ..data.alterations import cropped, mirror_image, recompressed
from ..data.changed import ChangedImages

SIDES = (0.75, 0.95)  # of a crop's sides, relative to the image's
QUALITY = (10, 40)  # of planted JPEGs


def _crop(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """A window of 56 to 90 % of the area."""
    return cropped(image, random, SIDES)


def _jpeg(image: Image.Image, random: np.random.Generator) -> Image.Image:
    return recompressed(image, random, QUALITY)


def _flip(image: Image.Image, _random: np.random.Generator) -> Image.Image:
    return mirror_image(image)


def _all(image: Image.Image, random: np.random.Generator) -> Image.Image:
    return _jpeg(_flip(_crop(image, random), random), random)


KINDS: Mapping[str, Callable[[Image.Image, np.random.Generator], Image.Image]] = {
    "crop": _crop,
    "jpeg": _jpeg,
    "flip": _flip,
    "crop+flip+jpeg": _all,
}


@dataclass(frozen=True)
class Altered(ChangedImages):
    """The images of a set, each changed in the same way; they have the names of the originals.

    Args:
        whole: the set.
        kind: of `KINDS`.
        seed: of random crops and qualities, which depend on nothing else but kind and index.
    """

    kind: str
    seed: int = 0

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the originals' fingerprint and the change."""
        text = f"{self.kind} {self.seed} {SIDES} {QUALITY} {self.whole.fingerprint}"
        return hashlib.sha256(text.encode()).hexdigest()

    def open(self, index: int) -> Image.Image:
        """See `Images.open`."""
        random = generator(Purpose.TRANSFER_VIEW, self.seed, list(KINDS).index(self.kind), index)
        return KINDS[self.kind](self.whole.open(index), random)


def mirrored(images: Images) -> Altered:
    """The images, each mirrored left to right."""
    return Altered(images, "flip")


def drawn(images: Images, count: int, seed: int = 0) -> Subset:
    """Some images of a set at random, in their order; all where there are fewer."""
    random = generator(Purpose.SPLIT, seed, len(images))
    return Subset(images, np.sort(random.choice(len(images), min(count, len(images)), replace=False)))
