"""Labels of some of the images, one each or several: those of sub-folders, or of a table in CSV or Parquet."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from excb.console import plural
from excb.errors import UserError, first_line, path_text, require
from excb.files.parquet import read_parquet
from excb.images.image_set import ImageSet
from excb.sources.label_files import LABELS, LabelTable, by_image

from ..embeddings.sources import class_names

UNLABELLED = -1
LABEL_SETS = ("labels", "tags")  # columns whose cells hold any number of labels
SEPARATORS, NO_LABEL = ";|,", "-"


@dataclass(frozen=True)
class PhotoLabels:
    """The class of every image of a set, or its labels.

    Attributes:
        classes: names of the classes, or of the labels.
        of: index of each image's class, int64 [N]; `UNLABELLED` of images without one. Of images with several labels
            the rarest one, and K of those that are known to have none: images are distributed over parts by it.
        series: of each image, names that images taken together share; empty of those that are alone.
        sets: where images have several labels: whether each image has each, int8 [N, K] of 0 and 1; else None.
    """

    classes: tuple[str, ...]
    of: np.ndarray
    series: tuple[str, ...] = ()
    sets: np.ndarray | None = None

    @property
    def labelled(self) -> np.ndarray:
        """Whether each image has a label, bool [N]."""
        known: np.ndarray = self.of != UNLABELLED
        return known

    @property
    def counts(self) -> np.ndarray:
        """How many images have each label, int64 [K]."""
        if self.sets is not None:
            return np.asarray(self.sets.sum(0, dtype=np.int64))
        return np.bincount(self.of[self.labelled], minlength=len(self.classes))

    def name(self, index: int) -> str:
        """The label of an image, or its labels; empty of images without one."""
        if self.of[index] == UNLABELLED:
            return ""
        if self.sets is None:
            return self.classes[int(self.of[index])]
        return "; ".join(self.classes[label] for label in np.flatnonzero(self.sets[index])) or NO_LABEL


def photo_labels(images: ImageSet, table: Path | str | None, series: str | None) -> PhotoLabels:
    """The labels that a table gives, else those of sub-folders, looked for below train, test and val (`class_names`).

    Args:
        images: the set.
        table: a CSV or Parquet file with the columns path and label, where a row without a label is an image without
            one; or path and labels, of which a cell or several rows of an image hold any number, and - says none.
        series: a column of the table: images with the same value stay together in every split.

    Raises:
        UserError: the table or a column is missing, an image has two labels, or a row names no image of the set.
    """
    if table is None:
        require(
            series is None, f"series: {series!r} is a column of a table of labels: name the table, too, with labels"
        )
        names = class_names(images, np.arange(len(images)))
        known = tuple(sorted({name for name in names or () if name is not None}))
        index = {name: number for number, name in enumerate(known)}
        numbers = [UNLABELLED if name is None else index[name] for name in names or [None] * len(images)]
        return PhotoLabels(known, np.array(numbers, np.int64))
    rows = _read(Path(path_text(table, "labels are one file")), images.root)
    several = not {*LABELS} & {*rows.columns} and bool({*LABEL_SETS} & {*rows.columns})
    labels = (
        _sets(rows) if several else {path: (label,) if label else None for path, label in rows.values(LABELS).items()}
    )
    number = {path: index for index, path in enumerate(images.paths)}
    labels = by_image(labels, number)
    if gone := [path for path in labels if path not in number]:
        top, _, rest = gone[0].partition("/")
        below = "paths start in that folder and have their extensions"
        raise UserError(
            f"{len(gone):,} of {plural(len(labels), 'row')} of {table} name no image below {images.root}, such as "
            f"{gone[0]}: {f'leave {top}/ out of the paths' if rest in number else below}"
        )
    classes = tuple(sorted({label for own in labels.values() for label in own or ()}))
    place = {name: index for index, name in enumerate(classes)}
    of, sets = np.full(len(images), UNLABELLED), np.zeros((len(images), len(classes)), np.int8)
    for path, own in labels.items():
        sets[number[path], [place[label] for label in own or ()]] = 1
    counts = sets.sum(0, dtype=np.int64)
    for path, own in labels.items():
        if own is not None:
            of[number[path]] = min((place[label] for label in own), key=counts.__getitem__, default=len(classes))
    together = () if series is None else _together(rows, series, images.paths)
    return PhotoLabels(classes, of, together, sets if several else None)


def _sets(rows: LabelTable) -> dict[str, tuple[str, ...] | None]:
    """The labels of every image; None of those without a label, () of those that have none of them.

    Raises:
        UserError: cells are separated in different ways, or an image is said to have none and some.
    """
    cells = rows.cells(LABEL_SETS)
    used = [mark for mark in SEPARATORS if any(mark in cell for _, cell in cells)]
    require(len(used) < 2, f"{rows.file}: its labels are separated by {' and by '.join(used)}: use one of them")
    found = dict[str, set[str]]()
    for path, cell in cells:
        names = cell.split(used[0]) if used else [cell]
        found.setdefault(path, set()).update(filter(None, map(str.strip, names)))
    mixed = next((path for path, names in found.items() if NO_LABEL in names and len(names) > 1), None)
    require(mixed is None, f"{rows.file}: {mixed} has labels and {NO_LABEL}, which says that it has none: remove one")
    return {path: tuple(sorted(names - {NO_LABEL})) if names else None for path, names in found.items()}


def _together(rows: LabelTable, column: str, paths: Sequence[str]) -> tuple[str, ...]:
    """The series of every image; the rows of an image of several labels have one."""
    known = by_image(rows.values((column.lower(),)), set(paths))
    return tuple(known.get(path, "") for path in paths)


def _read(file: Path, root: Path) -> LabelTable:
    if file.suffix.lower() != ".parquet":
        return LabelTable.read(file, root)
    try:
        columns = read_parquet(file)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the labels {file}: {first_line(error)}") from None
    cells: Sequence[Sequence[str]] = [[_text(cell) for cell in column.to_pylist()] for column in columns.columns]
    names = tuple(name.strip().lower() for name in columns.column_names)
    return LabelTable(file, (root,), names, list(zip(*cells, strict=True)))


def _text(cell: object) -> str:
    """A cell of Parquet as one of CSV; a list is one of labels."""
    if isinstance(cell, list):
        return SEPARATORS[0].join(map(str, cell)) or NO_LABEL
    return "" if cell is None else str(cell)
