"""Sets in COCO's format, read and checked before anything is trained; importing this file needs no torch."""

import contextlib
import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from excb.errors import UserError
from excb.files import json_text

from .annotations import Annotation, CocoImage, CocoSet
from .run_lengths import run_lengths

__all__ = ["CocoSet", "open_coco"]

MOST_PIXELS = 2**31  # of an image; more than can be opened
CHECKED = 200  # images whose size is compared with the annotations' unless all are
LAYOUTS = (("annotations/instances_{}2017.json", "{}2017"), ("annotations/instances_{}.json", "{}"))
T = TypeVar("T")


def open_coco(
    data: Path | str | None = None,
    *,
    train_json: Path | str | None = None,
    train_images: Path | str | None = None,
    val_json: Path | str | None = None,
    val_images: Path | str | None = None,
    check_all: bool = False,
) -> tuple[CocoSet, CocoSet]:
    """The training and the validation set of a data tree, checked.

    Args:
        data: folder of COCO's layout.
        train_json: annotations of the training images, where the layout is another.
        train_images: folder of the training images.
        val_json: annotations of the validation images.
        val_images: folder of the validation images.
        check_all: open every image for its size, not a sample.

    Raises:
        UserError: something is missing, broken or contradictory.
    """
    if find_spec("pycocotools") is None:
        raise UserError("COCO's tools are not installed: run `pip install pycocotools`")
    places = [
        _place(data, "train", train_json, train_images),
        _place(data, "val", val_json, val_images),
    ]
    train, val = (_read(file, folder) for file, folder in places)
    _compare_categories(train, val)
    if not len(train.trainable):
        raise UserError(f"{train.source} has no object to train on: every image is empty, or lacks masks")
    if all(annotation.crowd for image in val.images for annotation in image.annotations):
        raise UserError(f"{val.source} has no object to find: average precision is not defined")
    _check_masks(val)
    for images in (train, val):
        _check_files(images)
        step = 1 if check_all else max(1, len(images) // CHECKED)
        for index in range(0, len(images), step):
            images.check_size(index)
    return train, val


def _place(
    data: Path | str | None, split: str, file: Path | str | None, folder: Path | str | None
) -> tuple[Path, Path]:
    """The annotation file and the image folder of a split; both exist."""
    if data is None and (file is None or folder is None):
        raise UserError(f"name a folder with --data, or both --{split}-json and --{split}-images")
    known = [(Path(data, a.format(split)), Path(data, b.format(split))) for a, b in LAYOUTS] if data is not None else []
    usual = next((place for place in known if place[0].is_file()), known[0] if known else (Path(), Path()))
    found = Path(file or usual[0]), Path(folder or usual[1])
    if data is not None and not Path(data).is_dir():
        raise UserError(f"no folder {data}: name the one that holds annotations/ and the images")
    for path, there, what, name in (
        (found[0], found[0].is_file(), "annotation file", "json"),
        (found[1], found[1].is_dir(), "folder of images", "images"),
    ):
        if not there:
            wanted = " or ".join(f"{a.format(split)} with {b.format(split)}/" for a, b in LAYOUTS)
            raise UserError(f"no {what} {path}: there must be {wanted}, or name another with --{split}-{name}")
    return found


def _read(file: Path, folder: Path) -> CocoSet:
    """An annotation file as a set; the images are not looked at."""
    try:
        text = file.read_bytes()
        contents = json_text.parse(text, bounded=False)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file} ({error}): get it again") from None
    for kind in ("images", "annotations", "categories"):
        if not isinstance(contents, dict) or not isinstance(contents.get(kind), list):
            raise UserError(f"{file} has no list of '{kind}': name a file of COCO's instance annotations")
    categories = dict(sorted(_entries(file, contents, "categories", _category)))
    images = {image.id: image for image in sorted(_entries(file, contents, "images", _image), key=lambda i: i.id)}
    for kind, count in (("categories", len(categories)), ("images", len(images))):
        if count < len(contents[kind]):
            number, times = Counter(entry["id"] for entry in contents[kind]).most_common(1)[0]
            raise UserError(f"{file} has {times} {kind} of id {number}: ids must differ")
    if doubles := [name for name, times in Counter(categories.values()).items() if times > 1]:
        raise UserError(f"{file}: two categories are called '{doubles[0]}': names must differ")
    labels = {number: label for label, number in enumerate(categories)}
    objects: dict[int, list[Annotation]] = defaultdict(list)
    for number, annotation in _entries(file, contents, "annotations", lambda entry: _annotation(entry, labels, images)):
        objects[number].append(annotation)
    return CocoSet(
        file,
        folder,
        tuple(
            CocoImage(image.id, image.file, image.width, image.height, tuple(objects[image.id]))
            for image in images.values()
        ),
        tuple(categories),
        tuple(categories.values()),
        hashlib.sha256(text).hexdigest(),
    )


def _entries(file: Path, contents: dict[str, Any], kind: str, make: Callable[[dict[str, Any]], T]) -> list[T]:
    found = []
    for number, entry in enumerate(contents[kind]):
        try:
            found.append(make(entry))
        except KeyError as error:
            raise UserError(f"{file}: number {number} of its {kind} lacks {error}") from None
        except (ArithmeticError, TypeError, ValueError) as error:
            raise UserError(f"{file}: number {number} of its {kind} is malformed: {error}") from None
    return found


def _category(entry: dict[str, Any]) -> tuple[int, str]:
    return _whole(entry["id"]), str(entry["name"])


def _image(entry: dict[str, Any]) -> CocoImage:
    width, height = _whole(entry["width"]), _whole(entry["height"])
    if width < 1 or height < 1 or width * height > MOST_PIXELS:
        raise ValueError(f"{width} x {height} pixels")
    return CocoImage(_whole(entry["id"]), str(entry["file_name"]), width, height)


def _annotation(entry: dict[str, Any], labels: dict[int, int], images: dict[int, CocoImage]) -> tuple[int, Annotation]:
    """The image's id and the object."""
    image, category = _whole(entry["image_id"]), _whole(entry["category_id"])
    if image not in images:
        raise ValueError(f"no image has the id {image}")
    if category not in labels:
        raise ValueError(f"no category has the id {category}")
    # Numbers of its own throughout: one that is shared with the parsed file keeps the memory around it.
    left, top, width, height = np.array(entry["bbox"], dtype=np.float64).tolist()
    area = float(entry.get("area", width * height)) + 0.0
    if not all(map(math.isfinite, (left, top, width, height, area))):
        raise ValueError(f"its box is {entry['bbox']} and its area {area}")
    mask = _mask(entry.get("segmentation"), images[image])
    return image, Annotation(labels[category], (left, top, width, height), area, bool(entry.get("iscrowd", 0)), mask)


def _mask(given: Any, image: CocoImage) -> tuple[np.ndarray, ...] | dict[str, Any] | None:
    if not isinstance(given, dict):
        polygons = tuple(np.array(points, dtype=np.float64) for points in given or ())
        if any(points.ndim != 1 for points in polygons):
            raise ValueError("its polygons are no lists of numbers")
        # COCO's tools walk along every edge, pixel by pixel, and count in 32 bits.
        far = 2 * max(image.width, image.height)
        if not all((np.abs(points) <= far).all() for points in polygons):  # NaN is no number below
            raise ValueError(f"a polygon leads out of image {image.id} of {image.width} x {image.height} pixels")
        return polygons or None
    size, counts = [image.height, image.width], given["counts"]
    if list(given["size"]) != size:
        raise ValueError(f"its mask is of {given['size']} pixels, not as large as image {image.id}")
    runs = run_lengths(counts) if isinstance(counts, str) else np.array([_whole(count) for count in counts], np.int64)
    if (runs < 0).any() or sum(runs.tolist()) != math.prod(size):
        raise ValueError("its run-length code is not as long as its image")
    return {"size": size, "counts": counts}


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value


# ---------------------------------------------------------------------------------------------------------------------
# Checks
# ---------------------------------------------------------------------------------------------------------------------


def _compare_categories(train: CocoSet, val: CocoSet) -> None:
    first, second = (set(zip(images.category_ids, images.classes, strict=True)) for images in (train, val))
    if first != second:
        sides = [
            f"only in {side.source}: {', '.join(f'{name} ({number})' for number, name in sorted(here - there)[:3])}"
            for side, here, there in ((train, first, second), (val, second, first))
            if here - there
        ]
        raise UserError(f"categories differ: {'; '.join(sides)}; both files must have the same names and ids")


def _check_files(images: CocoSet) -> None:
    """Every image lies on the disk: told from lists of folders, since to ask for each file can take minutes."""
    below = {image.file.rpartition("/")[0] for image in images.images}
    there: set[str] = set()
    for folder in below:
        path = images.folder / folder
        with contextlib.suppress(OSError):  # no such folder, or a name that no system takes: its images are missing
            if path.is_dir():
                there.update(f"{folder}/{file.name}" if folder else file.name for file in path.iterdir())
    if missing := [image.file for image in images.images if image.file not in there]:
        named = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise UserError(
            f"{len(missing)} of {len(images)} images of {images.source} are not in {images.folder}: {named}"
        )


def _check_masks(images: CocoSet) -> None:
    """Every object of a validation set has a mask: COCO's evaluation stops at one that has not."""
    for image in images.images:
        if not all(_is_mask(annotation.mask) for annotation in image.annotations):
            raise UserError(f"{images.source}: an object of image {image.id} has no mask: add or remove it")


def _is_mask(mask: tuple[np.ndarray, ...] | dict[str, Any] | None) -> bool:
    """Whether COCO's evaluation takes a mask: of polygons it looks at the first, and takes four numbers for a box."""
    return mask is not None and (isinstance(mask, dict) or (len(mask[0]) > 4 and all(map(len, mask))))
