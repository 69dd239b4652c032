"""The parts of all images of a set, in order: an image set of its own, whose images are inputs of one size."""

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from excb.errors import UserError
from excb.images.decoding import BrokenImageError
from excb.images.image_set import ScannedImages
from excb.images.pixels import Pixels, pixels_of
from excb.networks.preprocessing import Interpolation

from ..layouts.masks import MaskedImages
from .geometry import Box, Geometry


class Views:
    """Every part of every image, resized to the network's input.

    Args:
        images: the set.
        geometry: the parts.
        interpolation: of the resize, antialiased.
        progress: called with the number of images whose size was read; only windows need sizes beforehand.

    Raises:
        UserError: the size of an image cannot be read.
    """

    labels = None

    def __init__(
        self,
        images: MaskedImages,
        geometry: Geometry,
        interpolation: Interpolation,
        *,
        progress: Callable[[int], None] = lambda _images: None,
    ) -> None:
        self.images, self.geometry, self.interpolation = images, geometry, interpolation
        counts = np.ones(len(images), np.int64)
        if geometry.mode == "window":
            for index in range(len(images)):
                counts[index] = len(self.boxes(index))
                progress(1)
        self.ends = counts.cumsum()  # after the views of every image
        self._opened: tuple[int, Image.Image] | None = None  # the windows of one image follow each other

    def __len__(self) -> int:
        return int(self.ends[-1])

    @property
    def root(self) -> Path | str:
        """Of the images."""
        return self.images.root

    @property
    def pixels(self) -> Pixels:
        """How stored values of the images become colours."""
        return pixels_of(self.images)

    @property
    def scanned_folders(self) -> Sequence[Path]:
        """See `excb.images.image_set.ScannedImages`."""
        return self.images.scanned_folders if isinstance(self.images, ScannedImages) else ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Of pixels."""
        return self.images.classes

    @cached_property
    def paths(self) -> list[str]:
        """An image's path, with the number of the part where there are several."""
        several = self.geometry.mode == "window"
        owners = map(self.owner, range(len(self)))
        return [self.images.paths[image] + (f"#{part}" if several else "") for image, part in owners]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the set's fingerprint and the geometry."""
        text = f"{self.images.fingerprint} {self.geometry.to_dict()} {self.interpolation}"
        return hashlib.sha256(text.encode()).hexdigest()

    def stamp(self, index: int) -> str:
        """See `Images.stamp`."""
        return self.images.stamp(self.owner(index)[0])

    def owner(self, view: int) -> tuple[int, int]:
        """The image of a view, and the number of the view among the image's."""
        image = int(np.searchsorted(self.ends, view, side="right"))
        return image, view - self.of(image).start

    def of(self, image: int) -> range:
        """The views of an image."""
        return range(int(self.ends[image - 1]) if image else 0, int(self.ends[image]))

    def boxes(self, image: int) -> list[Box]:
        """The boxes of an image's views, in pixels of the image."""
        return self.geometry.boxes(*self.images.size(image))

    def open(self, index: int) -> Image.Image:
        """See `Images.open`."""
        image, part = self.owner(index)
        if self._opened is None or self._opened[0] != image:
            self._opened = image, self.images.open(image)
        picture = self._opened[1]
        try:
            box = self.boxes(image)[part]
        except UserError as error:
            raise BrokenImageError(str(error)) from None
        side = self.geometry.side
        return picture.resize((side, side), Image.Resampling[self.interpolation.upper()], box=box)

    def mask(self, index: int) -> np.ndarray:
        """The classes [side, side] int16 of a view's pixels. Raises UserError as `MaskedImages.mask`."""
        image, part = self.owner(index)
        left, top, right, bottom = self.boxes(image)[part]
        side = self.geometry.side
        return nearest_pixels(self.images.mask(image)[top:bottom, left:right], side, side)


def nearest_pixels(mask: np.ndarray, height: int, width: int) -> np.ndarray:
    """A mask [h, w] resized to [height, width]: the value under the centre of every new pixel."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(np.int64)
        for new, old in zip((height, width), mask.shape, strict=True)
    )
    resized: np.ndarray = mask[rows[:, None], columns]
    return resized
