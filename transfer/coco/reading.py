"""Read and check sets in COCO's format before training; importing this file does not import torch."""

import contextlib
import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from excb.errors import UserError, require
from excb.files import json_text

from .annotations import Annotation, CocoImage, CocoSet
from .run_lengths import run_lengths

MOST_PIXELS = 2**31  # of an image; larger ones cannot be opened
CHECKED = 200  # images whose size is compared with the annotated one, unless `check_all`
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
    """Read and check a training and a validation set.

    Args:
        data: folder in COCO's layout.
        train_json: annotations of the training images, if the layout differs.
        train_images: folder of the training images.
        val_json: annotations of the validation images.
        val_images: folder of the validation images.
        check_all: check the size of every image, not of a sample.

    Raises:
        UserError: something is missing, broken or inconsistent.
    """
    require(find_spec("pycocotools") is not None, "pycocotools is not installed: run `pip install pycocotools`")
    train = _read(*_find(data, "train", train_json, train_images))
    val = _read(*_find(data, "val", val_json, val_images))
    _compare_categories(train, val)
    if not len(train.trainable):
        raise UserError(f"{train.source} has no object to train on: no image has an object with a mask")
    if all(annotation.crowd for image in val.images for annotation in image.annotations):
        raise UserError(f"{val.source} has no object to detect: average precision is not defined")
    _check_masks(val)
    for images in (train, val):
        _check_files(images)
        for index in range(0, len(images), 1 if check_all else max(1, len(images) // CHECKED)):
            images.check_size(index)
    return train, val


def read_coco(file: Path, folder: Path) -> CocoSet:
    """Read one annotation file, and check that its images exist; they are not opened.

    Raises:
        UserError: something is missing, broken or inconsistent.
    """
    require(find_spec("pycocotools") is not None, "pycocotools is not installed: run `pip install pycocotools`")
    images = _read(file, folder)
    _check_files(images)
    return images


def _find(data: Path | str | None, split: str, file: Path | str | None, folder: Path | str | None) -> tuple[Path, Path]:
    """The annotation file and the image folder of a split; both exist."""
    if data is None and (file is None or folder is None):
        raise UserError(f"name a folder with --data, or both --{split}-json and --{split}-images")
    tree = LAYOUTS if data is not None else ()
    layouts = [(Path(data or "", a.format(split)), Path(data or "", b.format(split))) for a, b in tree]
    default = next((layout for layout in layouts if layout[0].is_file()), layouts[0] if layouts else (Path(), Path()))
    annotations, images = Path(file or default[0]), Path(folder or default[1])
    if data is not None and not Path(data).is_dir():
        raise UserError(f"no folder {data}: name the one that holds annotations/ and the images")
    for path, exists, what, option in (
        (annotations, annotations.is_file(), "annotation file", "json"),
        (images, images.is_dir(), "folder of images", "images"),
    ):
        if not exists:
            expected = " or ".join(f"{a.format(split)} with {b.format(split)}/" for a, b in LAYOUTS)
            raise UserError(f"no {what} {path}: --data needs {expected}; name another with --{split}-{option}")
    return annotations, images


def _read(file: Path, folder: Path) -> CocoSet:
    """An annotation file as a set; images are not opened."""
    try:
        text = file.read_bytes()
        contents = json_text.parse(text, bounded=False)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file} ({error}): download it again") from None
    for kind in ("images", "annotations", "categories"):
        if not isinstance(contents, dict) or not isinstance(contents.get(kind), list):
            raise UserError(f"{file} has no list of '{kind}': name a file of COCO's instance annotations")
    categories = dict(sorted(_entries(file, contents, "categories", lambda c: (_whole(c["id"]), str(c["name"])))))
    parents = {entry["id"]: str(entry.get("supercategory") or entry["name"]) for entry in contents["categories"]}
    images = {image.id: image for image in sorted(_entries(file, contents, "images", _image), key=lambda i: i.id)}
    for kind, count in (("categories", len(categories)), ("images", len(images))):
        if count < len(contents[kind]):
            number, times = Counter(entry["id"] for entry in contents[kind]).most_common(1)[0]
            raise UserError(f"{file} has {times} {kind} with id {number}: ids must be unique")
    if doubles := [name for name, times in Counter(categories.values()).items() if times > 1]:
        raise UserError(f"{file} has two categories named '{doubles[0]}': names must be unique")
    labels = {number: label for label, number in enumerate(categories)}
    objects: dict[int, list[Annotation]] = defaultdict(list)
    for number, annotation in _entries(file, contents, "annotations", lambda entry: _annotation(entry, labels, images)):
        objects[number].append(annotation)
    return CocoSet(
        file,
        folder,
        tuple(replace(image, annotations=tuple(objects[image.id])) for image in images.values()),
        tuple(categories),
        tuple(categories.values()),
        hashlib.sha256(text).hexdigest(),
        tuple(map(parents.__getitem__, categories)),
    )


def _entries(file: Path, contents: dict[str, Any], kind: str, parse: Callable[[dict[str, Any]], T]) -> list[T]:
    entries = []
    for number, entry in enumerate(contents[kind]):
        try:
            entries.append(parse(entry))
        except KeyError as error:
            raise UserError(f"{file}: {kind}[{number}] has no {error}") from None
        except (ArithmeticError, TypeError, ValueError) as error:
            raise UserError(f"{file}: {kind}[{number}] is malformed: {error}") from None
    return entries


def _image(entry: dict[str, Any]) -> CocoImage:
    width, height = _whole(entry["width"]), _whole(entry["height"])
    if width < 1 or height < 1 or width * height > MOST_PIXELS:
        raise ValueError(f"{width} x {height} pixels")
    return CocoImage(_whole(entry["id"]), str(entry["file_name"]), width, height)


def _annotation(entry: dict[str, Any], labels: dict[int, int], images: dict[int, CocoImage]) -> tuple[int, Annotation]:
    image, category = _whole(entry["image_id"]), _whole(entry["category_id"])
    if image not in images:
        raise ValueError(f"no image has the id {image}")
    if category not in labels:
        raise ValueError(f"no category has the id {category}")
    # Copy every number: a reference into the parsed file would keep its memory alive.
    left, top, width, height = np.array(entry["bbox"], dtype=np.float64).tolist()
    area = float(entry.get("area", width * height)) + 0.0
    if not all(map(math.isfinite, (left, top, width, height, area))):
        raise ValueError(f"its box is {entry['bbox']} and its area {area}")
    mask = _mask(entry.get("segmentation"), images[image])
    return image, Annotation(labels[category], (left, top, width, height), area, bool(entry.get("iscrowd", 0)), mask)


def _mask(segmentation: Any, image: CocoImage) -> tuple[np.ndarray, ...] | dict[str, Any] | None:
    if not isinstance(segmentation, dict):
        polygons = tuple(np.array(points, dtype=np.float64) for points in segmentation or ())
        if any(points.ndim != 1 for points in polygons):
            raise ValueError("its polygons are not lists of numbers")
        # pycocotools walks along every edge pixel by pixel and counts in 32 bits, so that far points crash it.
        far = 2 * max(image.width, image.height)
        if not all((np.abs(points) <= far).all() for points in polygons):  # also refuses NaN
            raise ValueError(f"a polygon leaves image {image.id} of {image.width} x {image.height} pixels")
        return polygons or None
    size, counts = [image.height, image.width], segmentation["counts"]
    if list(segmentation["size"]) != size:
        raise ValueError(f"its mask has size {segmentation['size']}, image {image.id} has {size}")
    runs = run_lengths(counts) if isinstance(counts, str) else np.array([_whole(count) for count in counts], np.int64)
    if (runs < 0).any() or sum(runs.tolist()) != math.prod(size):
        raise ValueError("its run-length code does not cover its image exactly")
    return {"size": size, "counts": counts}


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _compare_categories(train: CocoSet, val: CocoSet) -> None:
    first, second = (set(zip(images.category_ids, images.classes, strict=True)) for images in (train, val))
    if first != second:
        sides = [
            f"only in {side.source}: {', '.join(f'{name} ({number})' for number, name in sorted(here - there)[:3])}"
            for side, here, there in ((train, first, second), (val, second, first))
            if here - there
        ]
        raise UserError(f"categories differ ({'; '.join(sides)}): both files must have the same names and ids")


def _check_files(images: CocoSet) -> None:
    """Refuse a set with missing images. Folders are listed, because asking for each file can take minutes."""
    existing: set[str] = set()
    for folder in {image.file.rpartition("/")[0] for image in images.images}:
        path = images.folder / folder
        with contextlib.suppress(OSError):  # no such folder, or an impossible name: its images count as missing
            if path.is_dir():
                existing.update(f"{folder}/{file.name}" if folder else file.name for file in path.iterdir())
    if missing := [image.file for image in images.images if image.file not in existing]:
        names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise UserError(
            f"{len(missing)} of {len(images)} images of {images.source} are not in {images.folder}: {names}"
        )


def _check_masks(images: CocoSet) -> None:
    """Refuse a validation set with an object without a mask: COCO's evaluation would crash on it."""
    for image in images.images:
        for mask in (annotation.mask for annotation in image.annotations):
            # COCO's evaluation reads a first polygon of four numbers as a box.
            if not (isinstance(mask, dict) or (mask is not None and len(mask[0]) > 4 and all(map(len, mask)))):
                raise UserError(f"{images.source}: an object of image {image.id} has no mask: add or remove it")
