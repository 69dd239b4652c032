"""Read and check sets in COCO's format before training; importing this file does not import torch."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from excb.errors import RefusedFileError, UserError, require
from excb.files import json_text
from excb.files.foreign import TooLargeError, read_bytes
from excb.images.scanning import find_images
from excb.ledger import NAMED, Ledger, LedgerEntry

from .annotations import REPAIRED, Annotation, CocoSet
from .faults import GROUPS, Effect, Fault, Use, faults_ledger
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
TRAIN_AND_TEST = {"train": SPLITS["train"], "test": (*SPLITS["val"], "test")}  # by the splits of other protocols
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
    groups = group_names(*sets)
    uses = zip(sets, (Use.TRAINED, Use.JUDGED), strict=True)
    train, val = (replace(with_groups(images, groups), masks=masks, use=use) for images, use in uses)
    if not masks:
        train, val = (replace(images, faults=_of_boxes(images.faults)) for images in (train, val))
    for images in (train, val):
        for fault in images.faults:
            if (effect := fault.kind.effect_in(images.use)) is not Effect.REFUSED:
                note(f"{images.listed_in} has {fault}: {effect}")
    _refuse(train, val)
    if train.faults or val.faults:
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
    """Read one annotation file whose masks are classes of pixels, and check that its images exist.

    Raises:
        UserError: something is missing, broken or inconsistent; all faults are named at once.
    """
    _require_tools()
    images = _read(file, folder, sizes=CHECKED)
    images = replace(with_groups(images, group_names(images)), use=Use.PAINTED)
    _refuse(images)
    return images


@dataclass(frozen=True)
class ImageLabels:
    """The categories of the objects of each image, without their boxes and masks."""

    labels: Mapping[str, Mapping[str, int]]  # by file below the folder: category -> 1; -1 where it has crowds only
    classes: tuple[str, ...]  # in ascending order of their ids
    ledger: Ledger  # what else the folder holds, and doubts about the file


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
    used = {name for own in found.values() for name in own}
    classes, parents = _names_of(listing)
    faults = _with_groups(tuple(listing.faults), classes, _groups_of(classes, parents) - used)
    _refuse_faults([(file, folder, faults, Use.LABELS)])
    return ImageLabels(found, classes, files_beside(folder, found.keys(), file) + faults_ledger(faults, Use.LABELS))


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


def parse_file(file: Path) -> tuple[str, dict[str, Any]]:
    """An annotation file's SHA-256 and contents, which have the three lists.

    Raises:
        UserError: it cannot be read, or has not.
    """
    try:
        data = read_bytes(file)
        fingerprint, text = hashlib.sha256(data).hexdigest(), data.decode(json.detect_encoding(data), "surrogatepass")
        del data  # a gigabyte of a file of LVIS's, whose values take five
        contents = json_text.parse(text, bounded=False)
    except (RefusedFileError, TooLargeError) as error:
        raise UserError(f"cannot read {file} ({error})") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file} ({error}): download it again") from None
    for kind in ("images", "annotations", "categories"):
        if not isinstance(contents, dict) or not isinstance(contents.get(kind), list):
            raise UserError(f"{file} has no list of '{kind}': name a file of COCO's instance annotations")
    return fingerprint, contents


def _read(file: Path, folder: Path, *, sizes: int | None) -> CocoSet:
    """An annotation file as a set, with its faults."""
    fingerprint, contents = parse_file(file)
    listing = Listing(file, contents, folder, sizes=sizes)
    return as_set(listing, Objects(listing).read(), folder, fingerprint)


def as_set(listing: Listing, read: Sequence[tuple[int, Annotation, int]], folder: Path, fingerprint: str) -> CocoSet:
    """A set of the images of a listing with their objects, as `Objects` reads them."""
    objects: dict[int, list[Annotation]] = defaultdict(list)
    for number, annotation, _ in read:
        objects[number].append(annotation)
    images = tuple(replace(image, annotations=tuple(objects[image.id])) for image in listing.images.values())
    classes, parents = _names_of(listing)
    return CocoSet(
        listing.source,
        folder,
        images,
        tuple(listing.categories),
        classes,
        fingerprint,
        parents,
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
    used, groups = set[str](), set[str]()
    for images in sets:
        used |= {images.classes[annotation.label] for image in images.images for annotation in image.annotations}
        groups |= _groups_of(images.classes, images.supercategories)
    return groups - used


def with_groups(images: CocoSet, groups: Set[str]) -> CocoSet:
    """The set with one more fault, if it has categories that only group others."""
    return replace(images, faults=_with_groups(images.faults, images.classes, groups))


def _names_of(listing: Listing) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of all categories, and those of their groups; a category's own name where it has none."""
    entries = listing.categories.values()
    names = tuple(str(entry["name"]) for entry in entries)
    return names, tuple(str(entry.get("supercategory") or entry["name"]) for entry in entries)


def _groups_of(names: Sequence[str], parents: Sequence[str]) -> set[str]:
    """The categories that others have as their group."""
    return {parent for name, parent in zip(names, parents, strict=True) if parent != name} & set(names)


def _with_groups(faults: tuple[Fault, ...], names: Sequence[str], groups: Set[str]) -> tuple[Fault, ...]:
    own = [name for name in names if name in groups]
    return (*faults, Fault(GROUPS, len(own), tuple(own[:NAMED]))) if own else faults


def repaired_of(contents: dict[str, Any]) -> dict[str, Any]:
    """The record that `--repair` left in a file: its source, and what it changed."""
    info = contents.get("info")
    record = info.get(REPAIRED) if isinstance(info, dict) else None
    return record if isinstance(record, dict) else {}


def _of_boxes(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Those that matter where boxes alone are learned and judged."""
    return tuple(fault for fault in faults if not fault.kind.needs_masks)


def _refuse(*sets: CocoSet) -> None:
    """Raise UserError with all faults that are refused."""
    _refuse_faults([(images.listed_in, images.folder, images.faults, images.use) for images in sets])


def _refuse_faults(read: Sequence[tuple[Path, Path, tuple[Fault, ...], Use]]) -> None:
    """Raise UserError with all faults that are refused of annotation files, their folders' images and their uses."""
    lines, unmasked = [], False
    for file, folder, faults, use in read:
        if refused := [fault for fault in faults if fault.kind.effect_in(use) is Effect.REFUSED]:
            lines.append(f"{file} with images in {folder} has {'; '.join(map(str, refused))}")
        unmasked |= any(fault.kind.needs_masks for fault in refused)
    if lines:
        boxes = ", and --set masks=false judges boxes alone" if unmasked else ""
        raise UserError(f"{'. '.join(lines)}: {REPAIR}{boxes}")


def _compare_categories(train: CocoSet, val: CocoSet) -> None:
    first, second = (set(zip(images.category_ids, images.classes, strict=True)) for images in (train, val))
    if first != second:
        sides = [
            f"only in {side.listed_in}: {', '.join(f'{name} ({number})' for number, name in sorted(here - there)[:3])}"
            for side, here, there in ((train, first, second), (val, second, first))
            if here - there
        ]
        raise UserError(f"categories differ ({'; '.join(sides)}): both files must have the same names and ids")
