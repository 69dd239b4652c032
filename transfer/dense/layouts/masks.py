"""Images with a class per pixel: what every layout gives, and the one form of those whose masks are files."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from PIL import Image

from excb.console import plural
from excb.errors import UserError
from excb.files.csv_text import read_listing
from excb.files.foreign import refuse_special
from excb.images.decoding import DAMAGE, BrokenImageError, open_image, stored_and_upright_size
from excb.images.digests import upright_sizes
from excb.images.formats.plugins import open_plain
from excb.images.image_set import HeldContents, Images, held_source, stamp_of
from excb.images.pixels import EIGHT_BIT, ClippedImages, Pixels, Source, notice_of
from excb.images.scanning import scan_folder
from excb.ledger import NOTHING, Ledger

IGNORED = -1  # of pixels without a class: they are neither learned nor scored
Split = Literal["train", "test"]


class MaskedImages(Images, Protocol):
    """Images with a fixed order and a mask each. `labels` is None, `classes` names the classes of pixels."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""

    def size(self, index: int) -> tuple[int, int]:
        """Width and height of one image, without decoding it. Raises UserError if it cannot be read."""

    def mask(self, index: int) -> np.ndarray:
        """The classes [height, width] int16 of one image's pixels; `IGNORED` has none.

        Raises:
            UserError: the mask cannot be read, is of another size than its image, or holds an unknown value.
        """


@dataclass(frozen=True)
class MaskLayout:
    """One way in which a set lies on the disk."""

    name: str  # what `--layout` calls it
    title: str  # one line for people
    ignored: str  # which pixels do not count
    matches: Callable[[Path], bool]  # whether a folder has this layout
    open: Callable[[Path, Split], MaskedImages]  # a split of the folder; raises UserError if it is not usable


@dataclass(frozen=True)
class MaskFiles:
    """Images whose masks are files of one channel: image i is `root / paths[i]`, its mask `root / masks[i]`."""

    root: Path
    paths: tuple[str, ...]  # POSIX paths below root
    masks: tuple[str, ...]
    classes: tuple[str, ...]
    meaning: Mapping[int, int]  # the class of every value that a mask may hold; `IGNORED` for pixels that do not count
    scanned: tuple[
        str, ...
    ] = ()  # folders below root whose images and masks were searched for; without, a list named them
    labels: None = None
    ledger: Ledger = field(default=NOTHING, compare=False)  # what else is in these folders
    pixels: Pixels = EIGHT_BIT  # how stored values of images become colours
    clipped: ClippedImages | None = field(default=None, compare=False, repr=False)  # see `ImageSet`
    held: HeldContents = field(default_factory=HeldContents, compare=False, repr=False)  # see `ImageSet`
    _sizes: dict[int, tuple[int, int]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def scanned_folders(self) -> list[Path]:
        """See `excb.images.image_set.ScannedImages`."""
        return [self.root / folder for folder in self.scanned]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the lists of files, the classes and what values mean, whatever their root."""
        parts = [*self.paths, "", *self.masks, "", *self.classes, "", *(f"{v} {c}" for v, c in self.meaning.items())]
        return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()

    def stamp(self, index: int) -> str:
        """Sizes and modification times of an image and its mask; "none" if one is missing."""
        return stamp_of(self.file(index), self.root / self.masks[index])

    def file(self, index: int) -> Path:
        """The file of one image."""
        return self.root / self.paths[index]

    def source(self, index: int) -> Source:
        """See `CodedImages.source`."""
        return held_source(self, index)

    def open(self, index: int) -> Image.Image:
        """See `Images.open`."""
        image: Image.Image = open_image(self.source(index), self.pixels, notice_of(self, index))
        return image

    def size(self, index: int) -> tuple[int, int]:
        """See `MaskedImages.size`. All are measured with the first: views, masks and scores ask for them."""
        if not self._sizes:
            sizes = upright_sizes([self.root / path for path in self.paths], self.source)
            self._sizes.update({number: size for number, size in enumerate(sizes) if size is not None})
        if index in self._sizes:
            return self._sizes[index]
        try:
            return stored_and_upright_size(self.source(index))[1]
        except BrokenImageError as error:
            file = self.file(index)
            raise UserError(f"{file} cannot be read ({error}): fix it, or remove it with its mask") from None

    def mask(self, index: int) -> np.ndarray:
        """See `MaskedImages.mask`."""
        file = self.root / self.masks[index]
        values = _values(file, self.size(index))
        present = np.unique(values)
        if unknown := sorted(set(present.tolist()) - self.meaning.keys()):
            raise UserError(f"{file} holds the value {unknown[0]}, which is not a class of {self.root}: name its class")
        table = np.full(int(present[-1]) + 1, IGNORED, np.int16)
        table[present] = [self.meaning[value] for value in present.tolist()]
        classes: np.ndarray = table[values]
        return classes


def _values(file: Path, size: tuple[int, int]) -> np.ndarray:
    """The values [height, width] of a mask as they are stored. Raises UserError if it has none, or another size."""
    try:
        refuse_special(file)
        with open_plain(file) as image:
            if image.size != size:  # before it is decoded
                raise UserError(
                    f"{file} has {image.width} x {image.height} pixels and its image {size[0]} x {size[1]}: a mask "
                    "must be as large as its image"
                )
            if image.mode not in ("P", "L", "1", "I;16", "I"):
                raise UserError(
                    f"{file} is an image of mode {image.mode}: a mask has one channel, whose values are classes"
                )
            values = np.asarray(image)
            return values.view(np.uint8) if values.dtype == bool else values
    except DAMAGE as error:
        raise UserError(f"cannot read the mask {file} ({type(error).__name__}: {error})") from None


def listed(root: Path, names: Path, image: str, mask: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Images and masks of a list with a name per line, by the patterns of their paths, such as "JPEGImages/{}.jpg".

    Raises:
        UserError: the list cannot be read or is empty, or a file is missing.
    """
    try:
        lines = [line.split()[0] for line in read_listing(names, "utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise UserError(f"cannot read the list of images {names} ({error})") from None
    if not lines:
        raise UserError(f"{names} names no image")
    return existing_masks(root, [image.format(name) for name in lines], [mask.format(name) for name in lines])


def existing_masks(root: Path, paths: list[str], masks: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lists as they are. Raises UserError if a file is missing."""
    missing = [path for path in (*paths, *masks) if not (root / path).is_file()]
    if missing:
        found = plural(len(missing), "file is", "files are")
        raise UserError(f"{found} not in {root}, such as {missing[0]}: add them, or shorten the list")
    return tuple(paths), tuple(masks)


def in_folders(
    root: Path, images: str, masks: str, pair: Callable[[str], str]
) -> tuple[tuple[str, ...], tuple[str, ...], Ledger]:
    """All images below a folder and their masks below another, at any depth, and what else the first one holds.

    Args:
        root: of both folders.
        images: the folder of the images.
        masks: the folder of the masks.
        pair: path of an image below its folder -> path of its mask below the other.

    Raises:
        UserError: there is no image, or one without a mask.
    """
    place = root / images
    if not place.is_dir():
        raise UserError(f"no folder {place}: it holds the images")
    found = scan_folder(place)
    names = found.paths
    return (
        *existing_masks(root, [f"{images}/{path}" for path in names], [f"{masks}/{pair(path)}" for path in names]),
        found.ledger,
    )
