"""Read and check sets in COCO's format before training; importing this file does not import torch."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from excb.errors import UserError, require
from excb.files import json_text
from excb.images.scanning import find_images
from excb.ledger import Ledger, LedgerEntry

from .annotations import REPAIRED, Annotation, CocoSet
from .faults import GROUPS, NAMED, NO_SIZE, Effect, Fault
from .listing import Listing
from .objects import Objects

CHECKED = 200  # images whose size is compared with the annotated one, unless `check_all`
# Annotations and images below a folder: COCO's own, CVAT's, Roboflow's and FiftyOne's; {} is the name of a split.
LAYOUTS = (
    ("annotations/instances_{}2017.json", "{}2017"),
    ("annotations/instances_{}.json", "{}"),
    ("annotations/instances_{}.json", "images/{}"),
    ("{}/_annotations.coco.json", "{}"),
    ("{}/labels.json", "{}/data"),
)
SPLITS = {"train": ("train",), "val": ("val", "valid", "validation")}
REPAIR = "`excb-eval detection --repair DIR` writes clean copies"
Note = Callable[[str], None]


def open_coco(
    data: Path | str | None = None,
    *,
    train_json: Path | str | None = None,
    train_images: Path | str | None = None,
    val_json: Path | str | None = None,
    val_images: Path | str | None = None,
    check_all: bool = False,
    masks: bool | None = None,
    note: Note = lambda _line: None,
) -> tuple[CocoSet, CocoSet]:
    """Read and check a training and a validation set.

    Args:
        data: folder in COCO's layout.
        train_json: annotations of the training images, if the layout differs.
        train_images: folder of the training images.
        val_json: annotations of the validation images.
        val_images: folder of the validation images.
        check_all: check the size of every image, not of a sample.
        masks: whether masks are learned and judged; by default, where both sets have some.
        note: called with every kind of fault that is not refused.

    Raises:
        UserError: something is missing, broken or inconsistent; all faults are named at once.
    """
    _require_tools()
    places = (find_split(data, "train", train_json, train_images), find_split(data, "val", val_json, val_images))
    sets = [_read(*place, sizes=None if check_all else CHECKED) for place in places]
    if masks is None:
        masks = all(map(has_masks, sets))
    sets = [replace(images, masks=masks, faults=_relevant(images.faults, masks=masks)) for images in sets]
    groups = group_names(*sets)
    train, val = (with_groups(images, groups) for images in sets)
    sides = [(train, False), (val, masks)]
    for images, needs_masks in sides:
        for fault in images.faults:
            if not _is_refused(fault, needs_masks=needs_masks):
                note(f"{images.listed_in} has {fault}: {fault.kind.effect}")
    _refuse(sides)
    if any(images.faults for images, _ in sides):
        note(REPAIR)
    _compare_categories(train, val)
    if not len(train.trainable):
        with_what = "with a mask" if masks else "with a box that has an area"
        raise UserError(f"{train.listed_in} has no object to train on: no image has an object {with_what}")
    if all(annotation.crowd for image in val.images for annotation in image.annotations):
        raise UserError(f"{val.listed_in} has no object to detect: average precision is not defined")
    return train, val


def layout_place(root: Path, names: Sequence[str]) -> tuple[Path, Path] | None:
    """The annotation file and the image folder of a split below a folder, in any of the layouts; None without a file.

    Args:
        root: the folder.
        names: of the split, the likeliest first.
    """
    places = [(root / file.format(name), root / folder.format(name)) for name in names for file, folder in LAYOUTS]
    known = sorted((place for place in places if place[0].is_file()), key=lambda place: not place[1].is_dir())
    return next(iter(known), None)


def read_coco(file: Path, folder: Path) -> CocoSet:
    """Read one annotation file, and check that its images exist; they are not opened.

    Raises:
        UserError: something is missing, broken or inconsistent.
    """
    _require_tools()
    images = _read(file, folder, sizes=0)
    _refuse([(images, False)])
    return images


@dataclass(frozen=True)
class ImageLabels:
    """The categories of the objects of each image, without their boxes and masks."""

    labels: Mapping[str, Mapping[str, int]]  # by file below the folder: category -> 1; -1 where it has crowds only
    classes: tuple[str, ...]  # in ascending order of their ids
    beside: Ledger  # what else the folder holds


def read_labels(file: Path, folder: Path) -> ImageLabels:
    """Read which categories the objects of each image have. Boxes, masks and sizes may be missing.

    Raises:
        UserError: the file cannot be read, an object is of no image or category that it lists, or a file is missing.
    """
    _, contents = parse_file(file)
    listing = Listing(file, contents, folder, sizes=0)
    found: dict[str, dict[str, int]] = {image.file: {} for image in listing.images.values()}
    for image, category, crowd in Objects(listing).labels():
        own, name = found[listing.images[image].file], listing.categories[category]["name"]
        own[name] = -1 if crowd and own.get(name) != 1 else 1
    if refused := [fault for fault in listing.faults if fault.kind.effect is Effect.REFUSED and fault.kind != NO_SIZE]:
        raise UserError(f"{file} with images in {folder} has {'; '.join(map(str, refused))}: {REPAIR}")
    names = tuple(str(entry["name"]) for entry in listing.categories.values())
    return ImageLabels(found, names, files_beside(folder, found.keys(), file))


def _require_tools() -> None:
    require(find_spec("pycocotools") is not None, "pycocotools is not installed: run `pip install pycocotools`")


def find_split(
    data: Path | str | None, split: str, file: Path | str | None, folder: Path | str | None
) -> tuple[Path, Path]:
    """The annotation file and the image folder of a split, train or val; both exist.

    Raises:
        UserError: one does not.
    """
    if data is None and (file is None or folder is None):
        raise UserError(f"name a folder with --data, or both --{split}-json and --{split}-images")
    tree = [(a.format(name), b.format(name)) for a, b in LAYOUTS for name in SPLITS[split]] if data is not None else []
    layouts = [(Path(data or "", a), Path(data or "", b)) for a, b in tree]
    known = [layout for layout in layouts if layout[0].is_file()]
    known.sort(key=lambda layout: not layout[1].is_dir())  # stable: the first that has its images, too
    default = next(iter(known or layouts), (Path(), Path()))
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


def parse_file(file: Path) -> tuple[bytes, dict[str, Any]]:
    """An annotation file's bytes and contents, which has the three lists.

    Raises:
        UserError: it cannot be read, or has not.
    """
    try:
        text = file.read_bytes()
        contents = json_text.parse(text, bounded=False)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file} ({error}): download it again") from None
    for kind in ("images", "annotations", "categories"):
        if not isinstance(contents, dict) or not isinstance(contents.get(kind), list):
            raise UserError(f"{file} has no list of '{kind}': name a file of COCO's instance annotations")
    return text, contents


def _read(file: Path, folder: Path, *, sizes: int | None) -> CocoSet:
    """An annotation file as a set, with its faults."""
    text, contents = parse_file(file)
    listing = Listing(file, contents, folder, sizes=sizes)
    return as_set(listing, Objects(listing).read(), folder, hashlib.sha256(text).hexdigest())


def as_set(listing: Listing, read: Sequence[tuple[int, Annotation, int]], folder: Path, fingerprint: str) -> CocoSet:
    """A set of the images of a listing with their objects, as `Objects` reads them."""
    objects: dict[int, list[Annotation]] = defaultdict(list)
    for number, annotation, _ in read:
        objects[number].append(annotation)
    categories = listing.categories
    images = tuple(replace(image, annotations=tuple(objects[image.id])) for image in listing.images.values())
    return CocoSet(
        listing.source,
        folder,
        images,
        tuple(categories),
        tuple(entry["name"] for entry in categories.values()),
        fingerprint,
        tuple(str(entry.get("supercategory") or entry["name"]) for entry in categories.values()),
        faults=tuple(listing.faults),
        beside=files_beside(folder, {image.file for image in images}, listing.source),
        repaired=repaired_of(listing.contents),
    )


def files_beside(folder: Path, listed: Set[str], file: Path) -> Ledger:
    """All that a folder holds beside the images that an annotation file or a list names."""
    paths, ledger = find_images(folder)
    if not (rest := sorted(set(paths) - listed)):
        return ledger
    return ledger + Ledger((LedgerEntry(f"images that {file.name} does not list", len(rest), tuple(rest[:NAMED])),))


def has_masks(images: CocoSet) -> bool:
    """Whether any object, crowds apart, has a mask."""
    return any(annotation.trainable for image in images.images for annotation in image.annotations)


def group_names(*sets: CocoSet) -> set[str]:
    """The categories that no set has objects of, and that others have as their group."""
    used, parents = set[str](), set[str]()
    for images in sets:
        used |= {images.classes[annotation.label] for image in images.images for annotation in image.annotations}
        pairs = zip(images.classes, images.supercategories, strict=True)
        parents |= {parent for name, parent in pairs if parent != name}
    return {name for images in sets for name in images.classes if name in parents - used}


def with_groups(images: CocoSet, groups: set[str]) -> CocoSet:
    """The set with one more fault, if it has categories that only group others."""
    own = [name for name in images.classes if name in groups]
    fault = Fault(GROUPS, len(own), tuple(own[:NAMED]))
    return replace(images, faults=(*images.faults, fault)) if own else images


def repaired_of(contents: dict[str, Any]) -> dict[str, Any]:
    """The record that `--repair` left in a file: its source, and what it changed."""
    info = contents.get("info")
    record = info.get(REPAIRED) if isinstance(info, dict) else None
    return record if isinstance(record, dict) else {}


def _relevant(faults: tuple[Fault, ...], *, masks: bool) -> tuple[Fault, ...]:
    return tuple(fault for fault in faults if masks or not fault.kind.needs_masks)


def _refuse(sets: Sequence[tuple[CocoSet, bool]]) -> None:
    """Raise UserError with all faults that are refused; with each set whether all of its objects must have masks."""
    lines, unmasked = [], False
    for images, needs_masks in sets:
        if refused := [fault for fault in images.faults if _is_refused(fault, needs_masks=needs_masks)]:
            lines.append(f"{images.listed_in} with images in {images.folder} has {'; '.join(map(str, refused))}")
        unmasked |= any(fault.kind.needs_masks for fault in refused)
    if lines:
        boxes = ", and --set masks=false judges boxes alone" if unmasked else ""
        raise UserError(f"{'. '.join(lines)}: {REPAIR}{boxes}")


def _is_refused(fault: Fault, *, needs_masks: bool) -> bool:
    return fault.kind.effect is Effect.REFUSED or (needs_masks and fault.kind.needs_masks)


def _compare_categories(train: CocoSet, val: CocoSet) -> None:
    first, second = (set(zip(images.category_ids, images.classes, strict=True)) for images in (train, val))
    if first != second:
        sides = [
            f"only in {side.listed_in}: {', '.join(f'{name} ({number})' for number, name in sorted(here - there)[:3])}"
            for side, here, there in ((train, first, second), (val, second, first))
            if here - there
        ]
        raise UserError(f"categories differ ({'; '.join(sides)}): both files must have the same names and ids")
