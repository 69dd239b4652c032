"""Queries, the gallery that they are looked for in, and the ground truth: what every layout gives."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from excb.console import plural
from excb.errors import UserError
from excb.images.decoding import BrokenImageError, open_image
from excb.images.image_set import HeldContents, Images, held_source, stamp_of
from excb.images.pixels import EIGHT_BIT, ClippedImages, Pixels, Source, notice_of

Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels of the upright image
FamilyName = Literal["revisited", "copies"]
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Truth:
    """Which gallery images answer one query, by their indices, int64 each; both may be empty."""

    relevant: np.ndarray = field(default_factory=_NONE.copy)  # [R], each once
    junk: np.ndarray = field(default_factory=_NONE.copy)  # [J], left out of the ranking: neither right nor wrong


@dataclass(frozen=True)
class CroppedImages:
    """Image files, of which only a box may count: image i is `root / paths[i]`, cropped to `boxes[i]`."""

    root: Path
    paths: tuple[str, ...]  # POSIX paths below root
    boxes: tuple[Box | None, ...]  # None is the whole image
    pixels: Pixels = EIGHT_BIT  # how stored values become colours
    clipped: ClippedImages | None = field(default=None, compare=False, repr=False)  # see `ImageSet`
    held: HeldContents = field(default_factory=HeldContents, compare=False, repr=False)  # likewise
    labels: None = None
    classes: None = None

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the lists of files and boxes, whatever their root."""
        text = "\n".join(f"{path} {box}" for path, box in zip(self.paths, self.boxes, strict=True))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()

    def stamp(self, index: int) -> str:
        """See `Images.stamp`."""
        return stamp_of(self.file(index))

    def file(self, index: int) -> Path:
        """The file of one image."""
        return self.root / self.paths[index]

    def source(self, index: int) -> Source:
        """See `CodedImages.source`."""
        return held_source(self, index)

    def open(self, index: int) -> Image.Image:
        """See `Images.open`. Raises BrokenImageError also for a box outside the image."""
        image: Image.Image = open_image(self.source(index), self.pixels, notice_of(self, index))
        box = self.boxes[index]
        if box is None:
            return image
        left, top, right, bottom = (round(edge) for edge in box)
        left, top, right, bottom = max(left, 0), max(top, 0), min(right, image.width), min(bottom, image.height)
        if left >= right or top >= bottom:
            raise BrokenImageError(f"the box {box} lies outside its {image.width} x {image.height} pixels")
        return image.crop((left, top, right, bottom))


@dataclass(frozen=True)
class InstanceSet:
    """A set with ground truth for every query.

    Args:
        family: of its figures.
        queries: Q images.
        gallery: N images.
        truth: for every protocol of the set, such as "medium", the truth of each query, [Q]. A query without a relevant
            image does not count in the protocol's mAP.
        groups: a name for every query, [Q]: figures are reported by group, too.
    """

    family: FamilyName
    queries: Images
    gallery: Images
    truth: Mapping[str, Sequence[Truth]]
    groups: Sequence[str]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the ground truth."""
        digest = hashlib.sha256()
        for name, truths in self.truth.items():
            for query, truth in enumerate(truths):
                text = f"{name} {query} {sorted(truth.relevant.tolist())} {sorted(truth.junk.tolist())}\n"
                digest.update(text.encode())
        return digest.hexdigest()

    def relevant(self, query: int) -> np.ndarray:
        """The images that answer a query in any protocol, [R] int64, ascending."""
        return np.unique(np.concatenate([truths[query].relevant for truths in self.truth.values()]))

    def judged(self, query: int) -> np.ndarray:
        """The images that answer a query or are junk in any protocol, [R] int64, ascending."""
        every = [each for truths in self.truth.values() for each in (truths[query].relevant, truths[query].junk)]
        return np.unique(np.concatenate(every))


@dataclass(frozen=True)
class InstanceLayout:
    """One way in which a set lies on the disk."""

    name: str  # what `--layout` calls it
    title: str  # one line for people
    matches: Callable[[Path], bool]  # whether a folder has this layout
    # opens the folder, with the file of the ground truth where it is named; raises UserError if it is not usable
    open: Callable[[Path, Path | None], InstanceSet]


def existing_images(root: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """The paths as they are. Raises UserError if a file is missing, or a path leads out of `root`."""
    for path in paths:
        if path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise UserError(f"the ground truth names {path!r}, which is not a file below {root}: fetch it again")
    if missing := [path for path in paths if not (root / path).is_file()]:
        raise UserError(f"{plural(len(missing), 'file is', 'files are')} not in {root}, such as {missing[0]}: add them")
    return tuple(paths)
