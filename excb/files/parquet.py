"""Parquet tables of any origin, read whole, with pyarrow's errors as ValueErrors."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from excb.errors import UserError
from excb.files.foreign import check_memory, parsing, refuse_special


def require_pyarrow(advice: str = "") -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.parquet`. Raises UserError if they are not installed; `advice` ends its message."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"Parquet and Arrow need pyarrow: run `pip install 'excb[parquet]'`{advice}") from None
    return pyarrow, parquet


def read_parquet(file: Path, advice: str = "", but: Collection[str] = ()) -> Any:
    """The table of a file but for some columns, a `pyarrow.Table`; its metadata are those at the file's end.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged or something else, or would unpack to more than the memory limit and its own size.
        UserError: see `require_pyarrow`.
    """
    _, parquet = require_pyarrow(advice)
    refuse_special(file)
    with parsing(), parquet.ParquetFile(file) as opened:
        facts = opened.metadata
        groups = (facts.row_group(number) for number in range(facts.num_row_groups))
        check_memory(sum(group.total_byte_size for group in groups) - file.stat().st_size)
        check_memory(facts.num_rows * facts.num_columns)  # values that repeat take no room in the file
        names = [name for name in opened.schema_arrow.names if name not in but]
        table = opened.read(columns=names if but else None)
        return table.replace_schema_metadata({**(table.schema.metadata or {}), **(facts.metadata or {})})
