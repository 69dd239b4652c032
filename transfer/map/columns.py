"""Columns of a map: what is known of every image, as categories or numbers, from sequences, mappings and tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from excb.console import plural
from excb.errors import UserError, first_line, require
from excb.files.parquet import read_parquet
from excb.sources.label_files import PATHS, LabelTable, by_image

Values = Sequence[Any] | np.ndarray | Mapping[str, Any]  # one per image in order, or by path
LABEL = "label"


@dataclass(frozen=True)
class Column:
    """A value for every image.

    Attributes:
        name: as the page shows it.
        codes: int32 [N], each image's place in `values`; -1 where it has none. Empty of numbers.
        values: the categories, sorted. Empty of numbers.
        numbers: float32 [N], NaN where an image has none; None of categories.
    """

    name: str
    codes: np.ndarray
    values: tuple[str, ...]
    numbers: np.ndarray | None = None

    @property
    def known(self) -> int:
        """Images that have a value."""
        return int((self.codes >= 0).sum() if self.numbers is None else (~np.isnan(self.numbers)).sum())


def column_of(name: str, given: Values, paths: Sequence[str]) -> Column:
    """A column from values in the order of the images, or by path.

    Numbers with a fraction make a scale. Whole numbers are categories, such as clusters.

    Raises:
        UserError: there are other values than images, or none for any of them.
    """
    if isinstance(given, Mapping):
        several = [given.get(path) for path in paths]
    else:
        several = given.tolist() if isinstance(given, np.ndarray) else list(given)
        require(
            len(several) == len(paths),
            f"{name} has {plural(len(several), 'value')} for {plural(len(paths), 'image')}: pass one for each, or a "
            "mapping from paths to values",
        )
    made = _column(name, [_known(value) for value in several])
    require(made.known > 0, f"{name} has no value for any of the {plural(len(paths), 'image')}")
    return made


def _column(name: str, values: list[Any]) -> Column:
    numbers = [_number(value) for value in values]
    there = [number for number, value in zip(numbers, values, strict=True) if value is not None]
    if there and all(number is not None for number in there) and any(number % 1 for number in there if number):
        filled = [math.nan if number is None else number for number in numbers]
        return Column(name, np.empty(0, np.int32), (), np.array(filled, np.float32))
    texts = [None if value is None else _text(value) for value in values]
    categories = tuple(sorted({text for text in texts if text is not None}, key=_natural))
    place = {text: number for number, text in enumerate(categories)}
    return Column(name, np.array([-1 if text is None else place[text] for text in texts], np.int32), categories)


def _known(value: Any) -> Any:
    """A value, or None where it says nothing: an empty text or NaN."""
    nothing = value is None or (isinstance(value, float) and math.isnan(value))
    return None if nothing or (isinstance(value, str) and not value.strip()) else value


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _natural(text: str) -> tuple[bool, float, str]:
    """Whole numbers in their order, before words."""
    number = _number(text)
    return (number is None, number or 0.0, text)


def read_columns(file: Path, paths: Sequence[str], root: str) -> tuple[list[Column], int]:
    """The columns of a table, a CSV or Parquet file with a column of paths, for the images.

    Returns:
        Its columns, those without a value for any image left out; and the number of rows without an image.

    Raises:
        UserError: the table cannot be read, has no column of paths or no other, or no row is of these images.
    """
    names, rows = _parquet(file) if file.suffix == ".parquet" else _csv(file)
    column = next((name for name in PATHS if name in names), None)
    others = [name for name in names if name and name != column]
    if column is None or not others:
        raise UserError(
            f"{file} has the columns {', '.join(names) or 'none'}: it needs path (or file_name) and others, such as "
            "label"
        )
    at = names.index(column)
    by_path = by_image({_below(str(row[at]), root): row for row in rows if len(row) > at}, set(paths))
    known = [path for path in paths if path in by_path]
    if not known:
        such = next(iter(by_path), "none")
        raise UserError(f"no row of {file} is of these images: its paths are such as {such}, theirs as {paths[0]}")
    columns = []
    for name in others:
        place = names.index(name)
        values = [_cell(by_path.get(path), place) for path in paths]
        if any(value is not None for value in values):
            columns.append(_column(name, values))
    return columns, len(by_path) - len(known)


def _cell(row: Sequence[Any] | None, place: int) -> Any:
    return _known(row[place]) if row is not None and len(row) > place else None


def _csv(file: Path) -> tuple[list[str], Sequence[Sequence[Any]]]:
    table = LabelTable.read(file)
    return list(table.columns), table.rows


def _parquet(file: Path) -> tuple[list[str], Sequence[Sequence[Any]]]:
    try:
        table = read_parquet(file, ", or name a CSV file")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the table {file}: {first_line(error)}") from None
    import pyarrow

    plain = [field.name for field in table.schema if not pyarrow.types.is_nested(field.type)]
    columns = [table.column(name).to_pylist() for name in plain]
    return [name.lower() for name in plain], list(zip(*columns, strict=True))


def _below(text: str, root: str) -> str:
    """A path below the root, however a table writes it."""
    path, top = PurePosixPath(text.strip().replace("\\", "/")), Path(root).absolute().as_posix()
    return str(path.relative_to(top)) if path.is_absolute() and path.is_relative_to(top) else str(path)
