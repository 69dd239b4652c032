"""Labels in a table: a CSV file with the path and the label of an image on every row, and maybe its split.

It may lie in the folder of the images (metadata.csv, as in imagefolder of Hugging Face, or labels.csv), beside it
(FOLDER.csv), or be named in its place.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np

from excb.console import plural
from excb.errors import UserError, require
from excb.files.csv_text import plain_text, read_listing, read_rows
from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder
from excb.ledger import NAMED, Ledger, LedgerEntry
from excb.sources.source import Note, Split

INSIDE = ("metadata.csv", "labels.csv")
PATHS, LABELS, SPLIT = ("file_name", "path", "filename", "image", "file"), ("label", "class"), "split"
_SPLITS: Mapping[Split, Sequence[Sequence[str]]] = {
    "train": (("train", "training"),),
    "test": (("test", "testing"), ("val", "valid", "validation", "dev")),  # the first that has rows
}
_TRIED = 20  # rows whose files show which folder their paths start in
JPEG = (".jpg", ".jpeg")
FORM = "columns path (or file_name) and label, and maybe split, with their names in the first row"


Value = TypeVar("Value")


def copied_name(name: str) -> str:
    """The name of an image's smaller copy by `excb-pretrain shrink`, a JPEG."""
    return name if name.lower().endswith(JPEG) else f"{name}.jpg"


def by_image(values: Mapping[str, Value], there: Container[str]) -> dict[str, Value]:
    """Values by the names of images, where a table was written for images of which a set has smaller copies.

    Args:
        values: by the names in the table.
        there: names of the set's images.
    """

    def name_of(name: str) -> str:
        copied = copied_name(name)
        return copied if name not in there and copied in there and copied not in values else name

    return {name_of(name): value for name, value in values.items()}


@dataclass(frozen=True)
class LabelTable:
    """A table of labels."""

    file: Path
    roots: tuple[Path, ...]  # folders that its paths may start in, the likeliest first
    columns: tuple[str, ...]  # names of its columns, in lower case
    rows: Sequence[Sequence[str]]  # without the names

    @classmethod
    def read(cls, file: Path, *roots: Path) -> "LabelTable":
        """Read a file; its columns may be separated by commas, semicolons or tabs. Raises UserError."""
        require(
            not file.is_dir(),
            f"the labels {file} are a folder: name a table (CSV), or none if the sub-folders of the images are classes",
        )
        try:
            lines = read_listing(file).splitlines()
            head = lines[0] if lines else ""
            rows = read_rows(lines, max(",;\t", key=head.count))
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read the labels {file}: {error}") from None
        names = tuple(name.strip().lower() for name in rows[0]) if rows else ()
        cells = [[plain_text(cell) for cell in row] for row in rows[1:] if any(map(str.strip, row))]
        return cls(file, roots, names, cells)

    @property
    def usable(self) -> bool:
        """Whether it has columns of paths and of labels."""
        return bool({*PATHS} & {*self.columns} and {*LABELS} & {*self.columns})

    @property
    def has_splits(self) -> bool:
        """Whether it says which images are for training."""
        return SPLIT in self.columns

    def images(self, split: Split | None) -> ImageSet:
        """The labelled images, those of a split where it has splits; all of them if `split` is None.

        Raises:
            UserError: a column, a label or a file is missing, or an image has two labels.
        """
        known = self._labels(split)
        root = self._root(known)
        scan = scan_folder(root)
        there = set(scan.paths)
        label_of = by_image(known, there)
        if gone := [path for path in label_of if path not in there]:
            raise UserError(
                f"{len(gone):,} of {plural(len(label_of), 'image')} of {self.file} not in {root}, such as "
                f"{gone[0]}: paths start in that folder and have their extensions"
            )
        listed = set(by_image(self._labels(None), there))
        rest = [path for path in scan.paths if path not in listed]
        ledger = scan.ledger
        if rest:
            entry = LedgerEntry(f"images without a row in {self.file.name}", len(rest), tuple(rest[:NAMED]))
            ledger += Ledger((entry,))
        classes = tuple(sorted(set(label_of.values())))
        index = {name: number for number, name in enumerate(classes)}
        paths = sorted(label_of)
        return ImageSet(root, paths, np.array([index[label_of[path]] for path in paths]), classes, ledger=ledger)

    def values(self, names: Sequence[str], split: Split | None = None) -> dict[str, str]:
        """The cells of the first of these columns that there is, for every image of a split; some may be empty.

        Raises:
            UserError: there is no such column, or none of paths; or an image has two values, or there is no row.
        """
        known = dict[str, str]()
        for name, value in self.cells(names, split):
            if known.setdefault(name, value) != value:
                column = next(column for column in names if column in self.columns)
                said = f"{known[name] or 'none'} and {value or 'none'}"
                raise UserError(f"{self.file} gives {name} two {column}s, {said}: remove one row")
        return known

    def cells(self, names: Sequence[str], split: Split | None = None) -> list[tuple[str, str]]:
        """The path of every row of a split, and its cell in the first of these columns that there is.

        Raises:
            UserError: there is no such column, or none of paths, or no row.
        """
        found = [next((name for name in some if name in self.columns), None) for some in (PATHS, names)]
        if None in found:
            needs = FORM if names == LABELS else f"a column {' or '.join(names)}, beside path (or file_name)"
            raise UserError(f"{self.file} has the columns {', '.join(self.columns) or 'none'}: it needs {needs}")
        path, cell = (self.columns.index(str(name)) for name in found)
        rows = self._rows(split)
        require(bool(rows), f"{self.file} has no row")
        for row in rows:
            require(len(row) > max(path, cell), f"{self.file}: a row has too few columns: {','.join(row)}")
        return [(_posix(row[path], self.roots[0]), row[cell].strip()) for row in rows]

    def _labels(self, split: Split | None) -> dict[str, str]:
        """The label of every image of a split."""
        known = self.values(LABELS, split)
        empty = next((name for name, value in known.items() if not value), None)
        require(empty is None, f"{self.file}: {empty} has no label")
        return known

    def _rows(self, split: Split | None) -> Sequence[Sequence[str]]:
        if split is None or not self.has_splits:
            return self.rows
        column = self.columns.index(SPLIT)
        values = [row[column].strip().lower() if len(row) > column else "" for row in self.rows]
        for names in _SPLITS[split]:
            if rows := [row for row, value in zip(self.rows, values, strict=True) if value in names]:
                return rows
        wanted = " or ".join(names[0] for names in _SPLITS[split])
        few = ", ".join(sorted(set(values))[:5])
        raise UserError(f"{self.file} has no row of the split {wanted}: its column split says {few}")

    def _root(self, paths: Mapping[str, str]) -> Path:
        """The folder that has most of the first files."""
        tried = list(paths)[:_TRIED]

        def found(root: Path) -> int:
            return sum((root / path).is_file() or (root / copied_name(path)).is_file() for path in tried)

        return max(self.roots, key=found)


def _posix(path: str, root: Path) -> str:
    """A path below the root, however it is written."""
    text = path.strip().replace("\\", "/")
    if text.startswith("/"):
        absolute = PurePosixPath(text)
        return str(absolute.relative_to(root.absolute())) if absolute.is_relative_to(root.absolute()) else text
    return str(PurePosixPath(text))


def is_table(place: Path | str) -> bool:
    """Whether a place is a CSV file."""
    return str(place).lower().endswith(".csv") and Path(place).is_file()


def label_table(place: Path | str) -> LabelTable | None:
    """The table of a place that is a CSV file, or the one in a folder; None if there is none with labels."""
    path = Path(place)
    if is_table(place):
        folders = [path.with_suffix(""), path.parent / "images"]
        return LabelTable.read(path, path.parent, *(folder for folder in folders if folder.is_dir()))
    tables = [LabelTable.read(path / name, path) for name in INSIDE if (path / name).is_file()]
    return next((table for table in tables if table.usable), None)


def scan_labelled(
    place: Path | str, split: Split | None, note: Note = lambda _line: None, *, every: float | None = None
) -> ImageSet:
    """The images of a folder with the labels of its table, if it has one, or of its sub-folders.

    A table in a folder counts for more than its sub-folders do; one beside it only where these are no classes.

    Args:
        place: a folder, or a table.
        split: whose images to take where a table has splits; None takes all.
        note: called with messages for the user.
        every: seconds between frames of videos; not with a table.

    Raises:
        UserError: as `scan_folder`, and as `LabelTable.images`.
    """
    if (table := label_table(place)) is not None:
        require(every is None, f"frames of videos (--every) have no row in {table.file}: leave one of them out")
        if not is_table(place):
            note(f"labels of {place}: those of {table.file.name}")
        return table.images(split)
    images, folder = scan_folder(place, every=every), Path(place)
    if images.labels is not None or any("/" in path for path in images.paths):
        return images
    beside = folder.parent / f"{folder.name}.csv"
    for file in (*(folder / name for name in INSIDE), beside):
        if file.is_file() and (file != beside or not file.with_suffix(".txt").is_file()):
            table = LabelTable.read(file, folder, folder.parent)
            if split is not None or table.usable:  # where labels are needed, wrong columns are a mistake
                return table.images(split)
    return images
