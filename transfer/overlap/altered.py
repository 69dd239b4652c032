"""Altered images: mirrored ones, and copies that calibration plants (crops, strong JPEG compression, flips)."""

import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image, ImageOps

from excb.images.image_set import Images
from excb.images.subset import Subset
from excb.seeding import Purpose, generator

from ..data.changed import ChangedImages

SIDES = (0.75, 0.95)  # of a crop's sides, relative to the image's
QUALITY = (10, 40)  # of planted JPEGs


def _crop(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """A window of 56 to 90 % of the area, with the image's aspect ratio."""
    side = random.uniform(*SIDES)
    width, height = (max(1, round(side * each)) for each in image.size)
    left, top = random.integers(image.width - width + 1), random.integers(image.height - height + 1)
    return image.crop((int(left), int(top), int(left) + width, int(top) + height))


def _jpeg(image: Image.Image, random: np.random.Generator) -> Image.Image:
    coded = io.BytesIO()
    image.save(coded, "JPEG", quality=int(random.integers(*QUALITY, endpoint=True)))
    return Image.open(coded).convert("RGB")


def _flip(image: Image.Image, _random: np.random.Generator) -> Image.Image:
    return ImageOps.mirror(image)


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
