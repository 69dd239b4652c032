"""The categories and images of an annotation file: their ids, files and sizes; faults are counted, or fixed."""

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from excb.errors import UserError
from excb.images.decoding import BrokenImageError
from excb.images.formats.plugins import most_pixels

from . import faults
from .annotations import CocoImage
from .faults import FaultKind, Faults
from .image_files import ImageFiles
from .values import box_of, whole

Key = int | str  # of an image: its id as a number, or as the text that is none


class Listing:
    """The images and categories that objects refer to. What cannot be used is counted in `faults` and left out.

    Args:
        source: the annotation file, for messages.
        contents: its three lists.
        folder: of the images.
        sizes: the number of images whose size is compared with that of their file; None compares all.
        repair: fix what can be fixed; otherwise entries are kept as the file has them, where they can be read.

    Attributes:
        categories: entries by id, in ascending order.
        images: by id, in ascending order, without their objects.
        entries: what the file says of each, by id.
        category_of: the id of the category of every id in use.
        image_of: the id of the image of every id in use, or why it is dropped.
        scale: of images whose objects were annotated at another size, [2].
        lost: objects of images that are dropped, by the fault of the image.

    Raises:
        UserError: with `repair`, an id means two things.
    """

    def __init__(
        self, source: Path, contents: dict[str, Any], folder: Path, *, sizes: int | None, repair: bool = False
    ) -> None:
        self.source, self.contents, self.repair = source, contents, repair
        self.faults, self.lost = Faults(), Counter[FaultKind]()
        self.category_of: dict[int, int] = {}
        self.image_of: dict[Key, int | FaultKind] = {}
        self.scale: dict[int, np.ndarray] = {}
        self.entries: dict[int, dict[str, Any]] = {}
        self._files = ImageFiles(folder)
        self.categories = self._categories()
        self.images = self._images(sizes)

    def number(self, entry: dict[str, Any], name: str, where: str) -> int | None:
        """A whole number of an entry, however it is written."""
        value = entry.get(name)
        number = whole(value)
        if number is not None and not isinstance(value, int):
            self.faults.add(faults.NUMBERS_AS_TEXT, f"{name} of {where}")
        return number

    def _categories(self) -> dict[int, dict[str, Any]]:
        known, by_name = dict[int, dict[str, Any]](), dict[str, int]()
        for place, entry in enumerate(self.contents["categories"]):
            where = f"categories[{place}]"
            number = self.number(entry, "id", where) if isinstance(entry, dict) else None
            if number is None or entry.get("name") in (None, ""):
                self.faults.add(faults.BAD_CATEGORY, where)
                continue
            name = str(entry["name"])
            if number in self.category_of:
                self.faults.add(faults.CATEGORY_IDS, f"{number}: {name}")
                self._refuse_other(f"category id {number}", known[self.category_of[number]]["name"], name)
                continue
            if name in by_name:
                self.faults.add(faults.CATEGORY_NAMES, name)
            self.category_of[number] = by_name.setdefault(name, number)
            if self.category_of[number] == number:
                known[number] = entry | {"id": number, "name": name}
        return dict(sorted(known.items()))

    def _refuse_other(self, what: str, first: str, second: str) -> None:
        if self.repair and first != second:
            raise UserError(f"{self.source}: {what} means both {first} and {second}: only its author can say which")

    def _images(self, sizes: int | None) -> dict[int, CocoImage]:
        entries = self.contents["images"]
        order = sorted(range(len(entries)), key=lambda place: self._order(entries[place]))
        step = 1 if sizes is None else max(1, len(entries) // sizes) if sizes else len(entries) + 1
        compared = set(order[::step] if sizes != 0 else ())
        images, by_file = dict[int, CocoImage](), dict[str, int]()
        for place, entry in enumerate(entries):
            where = f"images[{place}]"
            if not isinstance(entry, dict) or entry.get("id") is None or not (name := _name(entry)):
                self.faults.add(faults.BAD_IMAGE, where)
                continue
            key = self.key(entry, "id", where)
            if isinstance(key, str):
                self.faults.add(faults.WORDS_AS_IDS, key)
            if key in self.image_of:
                self.faults.add(faults.IMAGE_IDS, key)
                first = self.image_of[key]
                if isinstance(first, int):
                    self._refuse_other(f"image id {key}", images[first].file, self._files.find(name) or name)
                continue
            image = self._image(entry, where, key, name, compared=place in compared)
            if isinstance(image, FaultKind):
                self.image_of[key] = image
                continue
            if image.file in by_file:
                self.faults.add(faults.SAME_FILE, image.file)
            first_id = by_file.setdefault(image.file, image.id)
            self.image_of[key] = first_id if self.repair else image.id
            if self.image_of[key] == image.id:
                images[image.id], self.entries[image.id] = image, entry
        return dict(sorted(images.items()))

    def _order(self, entry: Any) -> int:
        return (whole(entry.get("id")) if isinstance(entry, dict) else None) or 0

    def key(self, entry: dict[str, Any], name: str, where: str) -> Key:
        """The id of an image in an entry."""
        number = self.number(entry, name, where)
        return str(entry.get(name)) if number is None else number

    def _image(
        self, entry: dict[str, Any], where: str, key: Key, name: str, *, compared: bool
    ) -> CocoImage | FaultKind:
        """One image; with `repair`, the fault for which it is dropped."""
        number = key if isinstance(key, int) else self._new_ids[key]
        if (file := self._files.find(name)) is None:
            self.faults.add(faults.MISSING, name)
            if self.repair:
                return faults.MISSING
        elif file != name:
            self.faults.add(faults.FILE_NAMES, f"{name} is {file}")
        size = self._size(entry, where, key, file, compared=compared or self.repair)
        if isinstance(size, FaultKind):
            return size
        return CocoImage(number, file or name, *size)

    @cached_property
    def _new_ids(self) -> dict[str, int]:
        """Numbers of images whose ids are words, after all other ids."""
        keys = [entry.get("id") for entry in self.contents["images"] if isinstance(entry, dict)]
        last = max((number for number in map(whole, keys) if number is not None), default=0)
        words = dict.fromkeys(str(key) for key in keys if whole(key) is None)
        return {word: last + number for number, word in enumerate(words, 1)}

    def _size(
        self, entry: dict[str, Any], where: str, key: Key, file: str | None, *, compared: bool
    ) -> tuple[int, int] | FaultKind:
        """Width and height; with `repair` those of the file, or the fault for which its image is dropped."""
        width, height = (self.number(entry, side, where) or 0 for side in ("width", "height"))
        stated = (width, height)
        has_size = width > 0 and height > 0 and width * height <= most_pixels()
        if not has_size:
            self.faults.add(faults.NO_SIZE, _name(entry))
        if file is None or (has_size and not compared):
            return stated if has_size else (1, 1)
        try:
            stored, upright = self._files.sizes(file)
        except BrokenImageError:
            self.faults.add(faults.UNREADABLE, file)
            return faults.UNREADABLE if self.repair else stated
        if not has_size or upright == stated:
            return upright
        if stored == stated:
            self.faults.add(faults.ROTATED, file)
            return faults.ROTATED if self.repair else stated
        self.faults.add(faults.OTHER_SIZE, f"{file} is {upright[0]} x {upright[1]}, not {width} x {height}")
        return self._fitted(key, stated, upright) if self.repair else stated

    def _fitted(self, key: Key, stated: tuple[int, int], upright: tuple[int, int]) -> tuple[int, int] | FaultKind:
        """The size of an image's file, if its objects can be meant for it; the fault for which it is dropped if not."""
        right, bottom = self._extents.get(key, (0.0, 0.0))
        if stated == upright[::-1] and right <= upright[0] + 1 and bottom <= upright[1] + 1:
            return upright
        scale = np.array(upright) / np.array(stated)
        if abs(scale[0] * stated[1] - upright[1]) > 1 and abs(scale[1] * stated[0] - upright[0]) > 1:
            return faults.OTHER_SIZE
        number = key if isinstance(key, int) else self._new_ids[key]
        self.scale[number] = scale
        return upright

    @cached_property
    def _extents(self) -> dict[Key, tuple[float, float]]:
        """How far to the right and to the bottom the boxes of every image reach."""
        reach: dict[Key, tuple[float, float]] = {}
        for entry in self.contents["annotations"]:
            box = box_of(entry.get("bbox")) if isinstance(entry, dict) else None
            if box is not None:
                number = whole(entry.get("image_id"))
                key: Key = str(entry.get("image_id")) if number is None else number
                right, bottom = reach.get(key, (0.0, 0.0))
                reach[key] = max(right, box[0] + box[2]), max(bottom, box[1] + box[3])
        return reach


def _name(entry: dict[str, Any]) -> str:
    """The file of an image as its entry names it; LVIS 1.0 has the address of COCO's file instead."""
    return str(entry.get("file_name") or entry.get("coco_url") or "")
