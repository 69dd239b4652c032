"""Tables as CSV that a spreadsheet shows and never runs, and lines and rows of any origin."""

import csv
import errno
import io
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from excb.errors import RefusedFileError
from excb.files.foreign import TooLargeError, check_memory, memory_limit, open_file, parsing, read_text

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # beginnings of what a spreadsheet takes for a formula
_BUILT_LINE, _BUILT_CELL = 250, 60  # bytes that a row, and a cell of it, take with what readers make of them
_MOST_BUILT = 1 + _BUILT_LINE
_LONGEST_HEAD = 2**16  # bytes of a table's first line
_TIMES = 10  # this many times `memory_limit` may be built, as of JSON


def path_cell(path: str) -> str:
    """A path; one that begins like a formula is written ./PATH, which is the same file."""
    return f"./{path}" if path.startswith(_FORMULA) else path


def text_cell(text: str) -> str:
    """A text; one that begins like a formula, apostrophes apart, gets an apostrophe before it."""
    return f"'{text}" if text.lstrip("'").startswith(_FORMULA) else text


def plain_text(cell: str) -> str:
    """The text that `text_cell` wrote."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(_FORMULA) else cell


def read_listing(file: Path, encoding: str = "utf-8-sig", errors: str = "strict") -> str:
    """The text of a list or a table of any origin, whose lines and cells fit the memory.

    Raises:
        OSError: as `read_text`, and RefusedFileError where it has too many lines or cells.
    """
    text = read_text(file, encoding, errors)
    try:
        check_cells(text)
    except TooLargeError as error:
        raise RefusedFileError(errno.EFBIG, str(error), os.fspath(file)) from None
    return text


def check_cells(text: str) -> None:
    """Raise TooLargeError if the lines and cells of a text would fill the memory."""
    if len(text) * _MOST_BUILT <= _TIMES * memory_limit():  # then it fits, whatever it holds
        return
    cells = max(map(text.count, ",;\t"))
    check_memory((len(text) + _BUILT_LINE * text.count("\n") + _BUILT_CELL * cells) / _TIMES)


def first_cells(file: Path) -> list[str]:
    """The cells of a table's first line; empty of a file that is none. Raises OSError if it cannot be read."""
    with open_file(file) as stream:
        first = stream.readline(_LONGEST_HEAD).decode("utf-8-sig", "replace")
    try:
        return next(iter(read_rows([first])), [])
    except ValueError:
        return []


def read_rows(lines: Iterable[str], separator: str = ",") -> list[list[str]]:
    """The cells of a table's lines. Raises ValueError if they are not CSV."""
    with parsing():
        return list(csv.reader(lines, delimiter=separator))


def csv_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A line for the names of the columns, and one for each row; None is an empty value.

    Text that a spreadsheet would take for a formula gets an apostrophe before it. Raises the error of `plain_table`.
    """
    return plain_table(head, ([_harmless(value) for value in row] for row in rows))


def plain_table(head: Sequence[str], rows: Iterable[Sequence[Any]], *, ends: str = "\n") -> str:
    """The same with cells as they are given: what could be a formula was altered before.

    Args:
        head: names of the columns.
        rows: their values.
        ends: of lines.

    Raises:
        ValueError: the text would be read as another table.
    """
    stream, cells = io.StringIO(newline=""), [head, *map(list, rows)]
    writer = csv.writer(stream, lineterminator="\r\n")  # of which both are quoted in cells
    for row in cells:
        writer.writerow(row)
        stream.seek(stream.tell() - 2)
        stream.write(ends)
        stream.truncate()
    stream.seek(0)
    check_table(stream, cells)
    return stream.getvalue()


def check_table(written: Iterable[str], rows: Iterable[Sequence[Any]]) -> None:
    """Check that a table's lines are read as these rows. Raises ValueError if they are not."""
    try:
        for number, (cells, row) in enumerate(itertools.zip_longest(csv.reader(written), rows), 1):
            if cells is None or row is None or cells != ["" if value is None else str(value) for value in row]:
                raise ValueError(f"row {number} of a table would be read as {str(cells)[:80]}")
    except csv.Error as error:
        raise ValueError(f"a table would not be read: {error}") from None


def _harmless(value: Any) -> Any:
    return text_cell(value) if isinstance(value, str) else value
