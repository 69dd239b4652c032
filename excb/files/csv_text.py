"""Tables as CSV that a spreadsheet shows and never runs."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


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
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
