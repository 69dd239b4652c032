"""Clean copies of annotation files, with all that was changed, by reason and with counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excb.console import plural
from excb.errors import require
from excb.files import json_text

from . import faults
from .annotations import REPAIRED, Annotation
from .faults import Fault, FaultKind
from .listing import Listing
from .objects import Objects
from .reading import as_set, group_names, has_masks, parse_file, with_groups
from .values import whole


@dataclass(frozen=True)
class Repair:
    """One file's clean copy."""

    source: Path  # the file, which stays as it is
    target: Path  # the copy
    faults: tuple[Fault, ...]  # that were repaired
    lost: Mapping[FaultKind, int]  # objects that were dropped with their images
    before: int  # objects of the file
    kept: int  # objects of the copy

    @property
    def rows(self) -> list[list[str]]:
        """Each fault, how often, what was done, and where first."""
        return [
            [fault.kind.words, f"{fault.count:,}", fault.kind.repair + self._lost(fault.kind), fault.examples]
            for fault in self.faults
        ]

    def _lost(self, kind: FaultKind) -> str:
        return f" ({plural(self.lost[kind], 'object')})" if self.lost.get(kind) else ""

    def record(self, sha256: str) -> dict[str, Any]:
        """As the copy keeps it."""
        changed = {fault.kind.words: fault.count for fault in self.faults}
        return {"file": self.source.name, "sha256": sha256, "objects": [self.before, self.kept], "faults": changed}


def repaired(
    places: Mapping[str, tuple[Path, Path]], out: Path, *, masks: bool | None = None
) -> list[tuple[dict[str, Any], Repair]]:
    """The contents of OUT/SPLIT.json for the annotation files of splits, and what was changed; nothing is written.

    Sizes are compared with those of all image files.

    Args:
        places: the annotation file and the folder of images of every split.
        out: a folder; nothing in it is overwritten.
        masks: whether objects need masks; by default, where all files have some.

    Raises:
        UserError: a file cannot be read or repaired, no object is left, or a copy exists.
    """
    targets = {split: out / f"{split}.json" for split in places}
    for target in targets.values():
        require(not target.exists(), f"{target} exists: name another folder with --repair DIR")
    read = [_Read(*place) for place in places.values()]
    groups = group_names(*(each.images for each in read))
    if masks is None:
        masks = all(has_masks(each.images) for each in read)
    made = [each.clean(target, groups, masks=masks) for each, target in zip(read, targets.values(), strict=True)]
    for _, repair in made:
        require(repair.kept > 0, f"{repair.source} has no object that can be used: is it the right file?")
    return made


def write_repaired(made: Sequence[tuple[dict[str, Any], Repair]]) -> None:
    """Write the copies, atomically. Raises UserError where one cannot be written."""
    for contents, repair in made:
        json_text.write_json(contents, repair.target, indent=None, allow_nan=False)


class _Read:
    """An annotation file that is read with `repair`."""

    def __init__(self, file: Path, folder: Path) -> None:
        self._sha256, self._contents = parse_file(file)
        self._listing = Listing(file, self._contents, folder, sizes=None, repair=True)
        self._objects = Objects(self._listing).read()
        self.images = as_set(self._listing, self._objects, folder, self._sha256)

    def clean(self, target: Path, groups: set[str], *, masks: bool) -> tuple[dict[str, Any], Repair]:
        """The contents of the copy, and what was changed."""
        listing, images = self._listing, with_groups(self.images, groups)
        changed = tuple(fault for fault in images.faults if masks or not fault.kind.needs_masks)
        kept = [each for each in self._objects if each[1].has_mask or not masks]
        repair = Repair(listing.source, target, changed, listing.lost, len(self._contents["annotations"]), len(kept))
        info = self._contents.get("info")
        contents = self._contents | {
            "info": (info if isinstance(info, dict) else {}) | {REPAIRED: repair.record(self._sha256)},
            "images": [
                listing.entries[image.id]
                | {"id": image.id, "file_name": image.file, "width": image.width, "height": image.height}
                for image in images.images
            ],
            "categories": [entry for entry in listing.categories.values() if entry["name"] not in groups],
            "annotations": [self._entry(number, *each) for number, each in enumerate(kept, 1)],
        }
        return contents, repair

    def _entry(self, number: int, image: int, annotation: Annotation, place: int) -> dict[str, Any]:
        """One object in COCO's form; with its own id, unless ids must be numbered anew."""
        entry: dict[str, Any] = self._contents["annotations"][place]
        mask = annotation.mask
        own = number if faults.ANNOTATION_IDS in self._listing.faults.counts else whole(entry["id"])
        return entry | {
            "id": own,
            "image_id": image,
            "category_id": self.images.category_ids[annotation.label],
            "bbox": list(annotation.box),
            "area": annotation.area,
            "iscrowd": int(annotation.crowd),
            "segmentation": mask if isinstance(mask, dict) else [part.tolist() for part in mask or ()],
        }
