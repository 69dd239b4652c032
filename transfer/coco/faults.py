"""Faults of annotation files: the table of their kinds, what reading and `--repair` do about each, and their counts."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from excb.ledger import NAMED, Ledger, LedgerEntry


class Effect(StrEnum):
    """How a set with such faults is read."""

    READ = "read as meant"
    KEPT = "kept as they are"
    UNTRAINED = "left out of training"
    REFUSED = "refused"
    UNSCORED = "the pixels of their boxes do not count"

    @property
    def leaves_out(self) -> bool:
        """Whether objects are in no figure."""
        return self in (Effect.UNTRAINED, Effect.UNSCORED)


class Use(StrEnum):
    """The purpose for which a set is read."""

    TRAINED = "a detector learns its objects"
    JUDGED = "average precision is measured on its objects"
    PAINTED = "its masks are classes of pixels"
    LABELS = "the categories of an image's objects are its labels"


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault."""

    words: str  # what has it, in the plural
    effect: Effect  # where a detector learns the objects
    repair: str  # what `--repair` does
    needs_masks: bool = False  # it is no fault where boxes alone are judged

    def effect_in(self, use: Use) -> Effect:
        """The effect where a set is read for a purpose."""
        if use is Use.LABELS and self is NO_SIZE:  # sizes are not needed
            return Effect.READ
        if self.effect is not Effect.UNTRAINED or use is Use.TRAINED:
            return self.effect
        if not self.needs_masks:
            return Effect.KEPT
        return Effect.UNSCORED if use is Use.PAINTED else Effect.REFUSED


@dataclass(frozen=True)
class Fault:
    """All faults of one kind in a file."""

    kind: FaultKind
    count: int
    names: tuple[str, ...]  # of the first ones

    def __str__(self) -> str:
        return f"{self.kind.words}: {self.count:,} ({self.examples})"

    @property
    def examples(self) -> str:
        """The first names."""
        return ", ".join(self.names) + (", ..." if self.count > len(self.names) else "")


@dataclass
class Faults:
    """The faults of a file, counted while it is read."""

    counts: dict[FaultKind, int] = field(default_factory=dict)
    names: dict[FaultKind, list[str]] = field(default_factory=dict)

    def add(self, kind: FaultKind, name: object) -> None:
        """Count one, by the name of what has it."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if len(names := self.names.setdefault(kind, [])) < NAMED:
            names.append(str(name))

    def __iter__(self) -> Iterator[Fault]:
        """In the order of the table: what is refused comes last."""
        for kind in KINDS:
            if kind in self.counts:
                yield Fault(kind, self.counts[kind], tuple(self.names[kind]))

    def __len__(self) -> int:
        return len(self.counts)


_READ, _KEPT, _UNTRAINED, _REFUSED, _ = Effect
NUMBERS_AS_TEXT = FaultKind("ids or sizes as text or with a decimal point", _READ, "written as whole numbers")
ANNOTATION_IDS = FaultKind("ids of objects that repeat, are missing or 0", _READ, "objects numbered from 1")
FILE_NAMES = FaultKind(
    "file names with other folders, backslashes or URL encoding", _READ, "replaced by the path below the folder"
)
CROWD_MISSING = FaultKind("objects without a crowd flag", _READ, "set to 0")
CROWD_FORM = FaultKind("crowd flags that are not 0 or 1", _READ, "written as 0 or 1")
AREA_MISSING = FaultKind("objects without an area", _READ, "measured on the mask, or on the box")
MASK_FORM = FaultKind(
    "masks in another form than COCO's (one flat list, points in pairs, a code in a list)", _READ, "written in COCO's"
)
SHORT_PARTS = FaultKind("parts of masks with two points or fewer", _READ, "dropped; the other parts stay")
CROWD_POLYGONS = FaultKind(
    "crowds that are polygons, which neither train nor count", _KEPT, "written as run-length codes, as COCO's crowds"
)
SAME_FILE = FaultKind("image files that are listed twice", _KEPT, "merged with their objects")
SAME_OBJECT = FaultKind("objects that are listed twice", _KEPT, "the second one dropped")
GROUPS = FaultKind(
    "categories that only group others and have no objects", _KEPT, "dropped, where no file has objects of them"
)
BEYOND = FaultKind("boxes that leave their image", _KEPT, "cut at the image's edge")
DISAGREE = FaultKind("boxes that do not enclose their masks", _KEPT, "replaced by the box around the mask")
FLAT = FaultKind(
    "boxes without an area or outside their image", _UNTRAINED, "replaced by the box around the mask, or dropped"
)
SHORT = FaultKind(
    "objects whose masks have no area, such as polygons of two points",
    _UNTRAINED,
    "dropped; kept as boxes where boxes alone are judged",
    needs_masks=True,
)
NO_MASK = FaultKind(
    "objects without a mask", _UNTRAINED, "dropped; kept as boxes where boxes alone are judged", needs_masks=True
)
BAD_MASK = FaultKind(
    "masks that cannot be read or are not of their image", _REFUSED, "removed, with the object where masks are judged"
)
BAD_BOX = FaultKind("boxes that are missing or not four numbers", _REFUSED, "the box around the mask, or dropped")
AS_CORNERS = FaultKind(
    "boxes that fit their images only as left, top, right, bottom", _REFUSED, "written as left, top, width, height"
)
BAD_OBJECT = FaultKind("entries of annotations that are no objects", _REFUSED, "dropped")
NO_IMAGE = FaultKind("objects of images that are not listed", _REFUSED, "dropped")
NO_CATEGORY = FaultKind("objects of categories that are not listed", _REFUSED, "dropped")
BAD_CATEGORY = FaultKind("categories without a name or an id", _REFUSED, "dropped")
CATEGORY_IDS = FaultKind("category ids that repeat", _REFUSED, "kept once, if the name is the same")
CATEGORY_NAMES = FaultKind("category names that repeat", _REFUSED, "merged into the first one")
BAD_IMAGE = FaultKind("images without a file name or an id", _REFUSED, "dropped with their objects")
IMAGE_IDS = FaultKind("image ids that repeat", _REFUSED, "kept once, if the file is the same")
WORDS_AS_IDS = FaultKind("image ids that are no numbers", _REFUSED, "numbered anew")
NO_SIZE = FaultKind("images without a size", _REFUSED, "the file's size")
OTHER_SIZE = FaultKind(
    "image files of another size than stated",
    _REFUSED,
    "objects scaled, or sides swapped, where all fits then; else dropped with their objects",
)
ROTATED = FaultKind(
    "images that an EXIF tag rotates and whose objects are not rotated", _REFUSED, "dropped with their objects"
)
MISSING = FaultKind("image files that are not there", _REFUSED, "dropped with their objects")
UNREADABLE = FaultKind("image files that cannot be read", _REFUSED, "dropped with their objects")

KINDS: tuple[FaultKind, ...] = tuple(kind for kind in globals().values() if isinstance(kind, FaultKind))


def faults_ledger(found: Iterable[Fault], use: Use) -> Ledger:
    """The ledger of all faults that leave something out or raise a doubt; those that are read as meant do neither."""
    effects = [(fault, fault.kind.effect_in(use)) for fault in found]
    return Ledger(
        tuple(
            LedgerEntry(fault.kind.words, fault.count, fault.names, str(effect), left_out=effect.leaves_out)
            for fault, effect in effects
            if effect is not Effect.READ
        )
    )
