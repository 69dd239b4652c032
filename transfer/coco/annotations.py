"""Images with annotated objects as in COCO's format; reading.py reads such sets from disk."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from excb.errors import UserError
from excb.images.decoding import BrokenImageError, open_image, stored_and_upright_size
from excb.images.image_set import stamp_of
from excb.images.pixels import EIGHT_BIT, ClippedImages, ClippedPart, Pixels, notice_of
from excb.ledger import NOTHING, Ledger, LedgerEntry

from .codes import decoded, packed
from .faults import Fault, Use, faults_ledger

REPAIRED = "repaired_by_excb"  # what `--repair` changed, in the `info` of the file that it writes
# Polygons [x0, y0, x1, y1, ...], a run-length code (a dict with size and counts), or None.
Mask = tuple[np.ndarray, ...] | dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Annotation:
    """One object, in pixels of the original image."""

    label: int  # index of its category in `CocoSet.classes`
    box: tuple[float, float, float, float]  # left, top, width, height
    area: float  # as the file has it
    crowd: bool  # a group of objects in one annotation: ignored in training and in evaluation
    mask: Mask

    @property
    def polygons(self) -> list[np.ndarray]:
        """The mask's polygons of at least three points; empty if the mask is a run-length code."""
        if self.mask is None or isinstance(self.mask, dict):
            return []
        return [points for points in self.mask if decodable(points)]

    @property
    def has_mask(self) -> bool:
        """Whether it has a run-length code, or a polygon of at least three points."""
        return isinstance(self.mask, dict) or bool(self.polygons)

    @property
    def trainable(self) -> bool:
        """Whether this is a single object with a mask."""
        return not self.crowd and self.has_mask

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, top, width and height of the mask; there is one."""
        if isinstance(self.mask, dict):
            from pycocotools import mask as coco

            left, top, width, height = coco.toBbox(packed(self.mask)).tolist()
            return left, top, width, height
        polygons = self.polygons
        points = polygons[0] if len(polygons) == 1 else np.concatenate(polygons)
        across, down = points[0::2].tolist(), points[1::2].tolist()  # Python's is the faster minimum of a few numbers
        left, top = min(across), min(down)
        return left, top, max(across) - left, max(down) - top

    def mask_at(self, scale: np.ndarray, height: int, width: int, *, flip: bool) -> np.ndarray:
        """The mask [height, width] bool in the resized image.

        Args:
            scale: new width and height divided by the original ones.
            height: of the resized image.
            width: of the resized image.
            flip: whether the image is mirrored left to right.
        """
        from pycocotools import mask as coco

        if isinstance(self.mask, dict):
            whole = Image.fromarray(decoded(packed(self.mask)))
            mask = np.asarray(whole.resize((width, height), Image.Resampling.NEAREST))
            return mask[:, ::-1] if flip else mask
        polygons = [points.reshape(-1, 2) * scale for points in self.polygons]
        if flip:
            polygons = [np.array((width, 0)) + points * (-1, 1) for points in polygons]
        lists = [points.reshape(-1).tolist() for points in polygons]
        return decoded(coco.merge(coco.frPyObjects(lists, height, width)))


@dataclass(frozen=True, slots=True)
class CocoImage:
    """One image: id, file relative to the set's folder, size in pixels, and objects in the file's order."""

    id: int
    file: str
    width: int
    height: int
    annotations: tuple[Annotation, ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.width, self.height


@dataclass(frozen=True)
class CocoSet:
    """Images with annotated objects."""

    listed_in: Path  # the annotation file
    folder: Path  # of the images
    images: tuple[CocoImage, ...]  # in ascending order of id
    category_ids: tuple[int, ...]  # the file's category ids, ascending; label i is category_ids[i]
    classes: tuple[str, ...]  # category names, in the same order
    fingerprint: str  # SHA-256 of the annotation file and of the selection of images
    supercategories: tuple[str, ...] = ()  # of every class; the class's own name where the file has none
    masks: bool = True  # whether masks are learned and judged, not boxes alone
    faults: tuple[Fault, ...] = ()  # of the annotation file
    use: Use = Use.TRAINED  # decides what the faults leave out
    pixels: Pixels = EIGHT_BIT  # how stored values become colours
    clipped: ClippedImages | ClippedPart | None = field(default=None, compare=False, repr=False)  # see `ImageSet`
    beside: Ledger = field(default=NOTHING, compare=False)  # what else its folder holds, and doubts about its images
    repaired: Mapping[str, Any] = field(default_factory=dict)  # what `--repair` changed in it, if it wrote the file

    def __len__(self) -> int:
        """Number of images."""
        return len(self.images)

    @property
    def ledger(self) -> Ledger:
        """Files left out of the folder, the objects that `--repair` dropped or that are left out here, and doubts."""
        before, kept = self.repaired.get("objects", (0, 0))
        dropped = LedgerEntry("objects that --repair dropped", before - kept)
        return self.beside + Ledger((dropped,) if dropped.count else ()) + faults_ledger(self.faults, self.use)

    def with_doubts(self, found: Ledger) -> "CocoSet":
        """See `excb.images.image_set.with_doubts`."""
        return replace(self, beside=self.beside + found)

    @property
    def root(self) -> Path:
        """The folder of the images."""
        return self.folder

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Files below the folder."""
        return tuple(image.file for image in self.images)

    @property
    def labels(self) -> None:
        """None: an image has objects, not one class."""
        return

    def stamp(self, index: int) -> str:
        """See `Images.stamp`; the fingerprint changes with the annotations."""
        return stamp_of(self.file(index))

    def file(self, index: int) -> Path:
        """Path of one image."""
        return self.folder / self.images[index].file

    source = file

    def open(self, index: int) -> Image.Image:
        """One image as upright 8-bit RGB.

        Raises:
            UserError: it cannot be read, or its size differs from the annotated one.
        """
        try:
            image: Image.Image = open_image(self.file(index), self.pixels, notice_of(self, index))
        except BrokenImageError as error:
            raise self._unreadable(index, error) from None
        if image.size != self.images[index].size:
            self.check_size(index)
        return image

    def check_size(self, index: int) -> None:
        """Compare an image's size with the annotated one, without decoding its pixels.

        Raises:
            UserError: they differ, or the file is not an image.
        """
        try:
            stored, upright = stored_and_upright_size(self.file(index))
        except BrokenImageError as error:
            raise self._unreadable(index, error) from None
        annotated = self.images[index].size
        if upright == annotated:
            return
        if stored == annotated:
            reason = "its EXIF tag rotates it, and its objects were annotated before the rotation: remove the tag"
        else:
            reason = "annotations and images are of different versions"
        sizes = " x ".join(map(str, upright)), " x ".join(map(str, annotated))
        raise UserError(f"{self.file(index)} has {sizes[0]} pixels, but {self.listed_in} says {sizes[1]}: {reason}")

    def _unreadable(self, index: int, error: Exception) -> UserError:
        return UserError(f"{self.file(index)} cannot be read ({error}): fix it, or remove it from {self.listed_in}")

    def objects(self, index: int) -> list[Annotation]:
        """One image's objects to train on: no crowd, and each with a mask, or with a box where boxes alone are judged.

        Boxes without an area are left out where there are no masks; with masks, they are when the image is resized.
        """
        known = self.images[index].annotations
        if self.masks:
            return [annotation for annotation in known if annotation.trainable]
        return [annotation for annotation in known if not annotation.crowd and min(annotation.box[2:]) > 0]

    @property
    def unused_classes(self) -> list[str]:
        """The classes without an object."""
        used = {annotation.label for image in self.images for annotation in image.annotations}
        return [name for label, name in enumerate(self.classes) if label not in used]

    @cached_property
    def trainable(self) -> "CocoSet":
        """The images with an object to train on; like Detectron2, drops images without objects or with crowds only."""
        return self.subset([index for index in range(len(self)) if self.objects(index)])

    def subset(self, indices: Sequence[int]) -> "CocoSet":
        """The images at these indices."""
        if list(indices) == list(range(len(self))):
            return self
        images = tuple(self.images[index] for index in indices)
        name = f"{self.fingerprint} {[image.id for image in images]}"
        clipped = None if self.clipped is None else self.clipped.part(indices)
        digest = hashlib.sha256(name.encode()).hexdigest()
        return replace(self, images=images, fingerprint=digest, clipped=clipped)

    def clearest(self, count: int) -> "CocoSet":
        """The `count` trainable images whose smallest object covers the largest share of the image, or all if fewer."""

        def smallest(index: int) -> float:
            image = self.images[index]
            return min(annotation.area for annotation in self.objects(index)) / (image.width * image.height)

        trainable = [index for index in range(len(self)) if self.objects(index)]
        return self.subset(sorted(sorted(trainable, key=smallest, reverse=True)[:count]))

    def ground_truth(self) -> dict[str, Any]:
        """The set as COCO's evaluation reads it; objects are renumbered from 1, because id 0 means unmatched there."""
        annotations = [
            {
                "image_id": image.id,
                "category_id": self.category_ids[annotation.label],
                "bbox": list(annotation.box),
                "area": annotation.area,
                "iscrowd": int(annotation.crowd),
                "segmentation": annotation.mask
                if isinstance(annotation.mask, dict)
                else [polygon.tolist() for polygon in annotation.mask or ()],
            }
            for image in self.images
            for annotation in image.annotations
        ]
        return {
            "images": [{"id": image.id, "width": image.width, "height": image.height} for image in self.images],
            "categories": [{"id": i, "name": name} for i, name in zip(self.category_ids, self.classes, strict=True)],
            "annotations": [{"id": number} | entry for number, entry in enumerate(annotations, 1)],
        }


def decodable(points: np.ndarray) -> bool:
    """Whether a list of numbers is a polygon: three points or more."""
    return points.size >= 6 and points.size % 2 == 0
