"""The objects of an annotation file, checked against images and each other: faults are counted, or fixed."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from . import faults
from .annotations import Annotation, CocoImage, Mask
from .boxes import Box, clipped, disagree, is_beyond, is_flat
from .codes import encoded, packed
from .faults import FaultKind
from .listing import Listing
from .values import area_of, box_of, crowd_flag, mask_of, whole

FEWEST = 10  # boxes that show that all of a file are corners


class Objects:
    """Reads the objects of a file; the faults are counted in the listing's, whose `repair` says whether to fix them."""

    def __init__(self, listing: Listing) -> None:
        self._listing, self._faults, self._repair = listing, listing.faults, listing.repair
        self._entries = listing.contents["annotations"]
        self._corners = self._are_corners()

    def read(self) -> list[tuple[int, Annotation, int]]:
        """Image id, object and its place in the file's list, in the file's order."""
        listing = self._listing
        objects = list[tuple[int, Annotation, int]]()
        first: dict[tuple[int, int, Box], int] = {}
        labels = {number: label for label, number in enumerate(listing.categories)}
        for place, entry, image, category in self._placed():
            where = f"annotations[{place}]"
            annotation = self._object(entry, where, listing.images[image], labels[category])
            if annotation is None:
                continue
            twin = first.setdefault((image, category, annotation.box), place)
            if twin != place and self._entries[twin].get("segmentation") == entry.get("segmentation"):
                self._faults.add(faults.SAME_OBJECT, where)
                if self._repair:
                    continue
            objects.append((image, annotation, place))
        return objects

    def labels(self) -> list[tuple[int, int, bool]]:
        """Image id, category id and crowd flag of every object, whatever its box and mask."""
        return [(image, category, crowd_flag(entry)[0]) for _, entry, image, category in self._placed()]

    def _placed(self) -> Iterator[tuple[int, dict[str, Any], int, int]]:
        """Place, entry, image id and category id of the objects of images and categories that are listed."""
        listing, ids = self._listing, set[int]()
        for place, entry in enumerate(self._entries):
            where = f"annotations[{place}]"
            if not isinstance(entry, dict):
                self._faults.add(faults.BAD_OBJECT, where)
                continue
            own = listing.number(entry, "id", where)
            if own is None or own == 0 or own in ids:
                self._faults.add(faults.ANNOTATION_IDS, where)
            else:
                ids.add(own)
            image = listing.image_of.get(listing.key(entry, "image_id", where))
            number = listing.number(entry, "category_id", where)
            category = None if number is None else listing.category_of.get(number)
            if isinstance(image, FaultKind):
                listing.lost[image] += 1
                continue
            if image is None or category is None:
                self._faults.add(faults.NO_IMAGE if image is None else faults.NO_CATEGORY, where)
                continue
            yield place, entry, image, category

    def _are_corners(self) -> bool:
        """Whether all boxes are left, top, right and bottom: as widths and heights, some would leave their images."""
        beyond = seen = 0
        for entry in self._entries:
            box = box_of(entry.get("bbox")) if isinstance(entry, dict) else None
            number = whole(entry.get("image_id")) if box is not None else None
            image = self._listing.image_of.get(number) if number is not None else None
            if box is None or not isinstance(image, int):
                continue
            size = self._listing.images[image].size
            if not (box[0] < box[2] <= size[0] + 1 and box[1] < box[3] <= size[1] + 1):
                return False
            seen, beyond = seen + 1, beyond + is_beyond(box, size)
        return seen >= FEWEST and beyond > 0

    def _object(self, entry: dict[str, Any], where: str, image: CocoImage, label: int) -> Annotation | None:
        """One object; None if it cannot be used."""
        crowd, kind = crowd_flag(entry)
        if kind is not None:
            self._faults.add(kind, where)
        scale = self._listing.scale.get(image.id)
        width, height = image.size if scale is None else (round(side) for side in np.array(image.size) / scale)
        mask, kinds = mask_of(entry.get("segmentation"), width, height)
        for each in kinds:
            self._faults.add(each, where)
        box, area = box_of(entry.get("bbox")), area_of(entry.get("area"))
        if box is not None and self._corners:
            self._faults.add(faults.AS_CORNERS, where)
            box = (box[0], box[1], box[2] - box[0], box[3] - box[1])
        if scale is not None:
            mask = _scaled(mask, scale, image)
            box = None if box is None else (*(box[:2] * scale), *(box[2:] * scale))  # type: ignore[assignment]
            area = None if area is None else area * float(scale.prod())
        box, mask = self._fitted(box, mask, image, where, crowd=crowd)
        if box is None:
            return None
        if area is None:
            self._faults.add(faults.AREA_MISSING, where)
            area = mask_area(mask, image) if self._repair and mask is not None else box[2] * box[3]
        if crowd and isinstance(mask, tuple):
            self._faults.add(faults.CROWD_POLYGONS, where)
            mask = run_length(mask, image) if self._repair else mask
        return Annotation(label, box, area, crowd, mask)

    def _fitted(
        self, box: Box | None, mask: Mask, image: CocoImage, where: str, *, crowd: bool
    ) -> tuple[Box | None, Mask]:
        """A box and a mask that are checked against each other and against the image, and fitted with `repair`."""
        around = None if mask is None else clipped(Annotation(0, (0, 0, 0, 0), 0, crowd, mask).bounds, image.size)
        if around is not None and is_flat(around, image.size):
            self._faults.add(faults.SHORT, where)
            mask = around = None
        if box is None:
            self._faults.add(faults.BAD_BOX, where)
            return around, mask
        if is_flat(box, image.size):
            self._faults.add(faults.FLAT, where)
            return (around if self._repair else box), mask
        if is_beyond(box, image.size):
            self._faults.add(faults.BEYOND, where)
            box = clipped(box, image.size) if self._repair else box
        if around is not None and not crowd and disagree(box, around):
            self._faults.add(faults.DISAGREE, where)
            box = around if self._repair else box
        return box, mask


def _scaled(mask: Mask, scale: np.ndarray, image: CocoImage) -> Mask:
    """A mask in its image's own size."""
    if isinstance(mask, dict):
        known = Annotation(0, (0, 0, 0, 0), 0, crowd=False, mask=mask)
        return encoded(known.mask_at(scale, image.height, image.width, flip=False))
    return None if mask is None else tuple((points.reshape(-1, 2) * scale).reshape(-1) for points in mask)


def run_length(mask: Mask, image: CocoImage) -> dict[str, Any]:
    """The compressed run-length code of an image's mask."""
    known = Annotation(0, (0, 0, 0, 0), 0, crowd=False, mask=mask)
    return encoded(known.mask_at(np.ones(2), image.height, image.width, flip=False))


def mask_area(mask: Mask, image: CocoImage) -> float:
    """The number of pixels of an image's mask."""
    from pycocotools import mask as coco

    return float(coco.area(packed(mask) if isinstance(mask, dict) else run_length(mask, image)))
