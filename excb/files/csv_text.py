"""Tables as CSV that a spreadsheet shows and never runs."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from excb.files.cells import text_cell


def csv_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A line for the names of the columns, and one for each row; None is an empty value.

    Text that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_harmless(value) for value in row] for row in rows)
    return stream.getvalue()


def _harmless(value: Any) -> Any:
    return text_cell(value) if isinstance(value, str) else value
