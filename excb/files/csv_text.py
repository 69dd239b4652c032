"""Tables as CSV that a spreadsheet shows and never runs."""

import csv
import io
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from excb.files.cells import text_cell


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
