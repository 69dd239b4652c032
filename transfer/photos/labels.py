"""Labels of some of the images: those of sub-folders, or of a table in CSV or Parquet."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from excb.console import plural
from excb.errors import UserError, first_line, require
from excb.files.parquet import read_parquet
from excb.images.image_set import ImageSet
from excb.sources.label_files import LABELS, LabelTable

UNLABELLED = -1


@dataclass(frozen=True)
class PhotoLabels:
    """The class of every image of a set.

    Attributes:
        classes: their names.
        of: index of each image's class, int64 [N]; `UNLABELLED` of images without one.
        series: of each image, names that images taken together share; empty of those that are alone.
    """

    classes: tuple[str, ...]
    of: np.ndarray
    series: tuple[str, ...] = ()

    @property
    def labelled(self) -> np.ndarray:
        """Whether each image has a label, bool [N]."""
        known: np.ndarray = self.of != UNLABELLED
        return known


def photo_labels(images: ImageSet, table: Path | str | None, series: str | None) -> PhotoLabels:
    """The labels that a table gives, else those of sub-folders.

    Args:
        images: the set.
        table: a CSV or Parquet file with the columns path and label; a row without a label is an image without one.
        series: a column of the table: images with the same value stay together in every split.

    Raises:
        UserError: the table or a column is missing, an image has two labels, or a row names no image of the set.
    """
    if table is None:
        require(series is None, f"series={series!r} is a column of a table of labels: name its file, too")
        if images.labels is None or images.classes is None:
            return PhotoLabels((), np.full(len(images), UNLABELLED))
        return PhotoLabels(images.classes, np.asarray(images.labels, np.int64))
    rows = _read(Path(table), images.root)
    labels = rows.values(LABELS)
    number = {path: index for index, path in enumerate(images.paths)}
    gone = [path for path in labels if path not in number]
    require(
        not gone,
        f"{len(gone):,} of {plural(len(labels), 'row')} of {table} name no image below {images.root}, such as "
        f"{gone[:1] and gone[0]}: paths start in that folder and have their extensions",
    )
    classes = tuple(sorted({label for label in labels.values() if label}))
    index = {name: place for place, name in enumerate(classes)}
    of = np.full(len(images), UNLABELLED)
    for path, label in labels.items():
        if label:
            of[number[path]] = index[label]
    if series is None:
        return PhotoLabels(classes, of)
    together = rows.values((series.lower(),))
    return PhotoLabels(classes, of, tuple(together.get(path, "") for path in images.paths))


def _read(file: Path, root: Path) -> LabelTable:
    if file.suffix.lower() != ".parquet":
        return LabelTable.read(file, root)
    try:
        columns = read_parquet(file)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the labels {file}: {first_line(error)}") from None
    cells: Sequence[Sequence[str]] = [
        ["" if cell is None else str(cell) for cell in column.to_pylist()] for column in columns.columns
    ]
    names = tuple(name.strip().lower() for name in columns.column_names)
    return LabelTable(file, (root,), names, list(zip(*cells, strict=True)))
