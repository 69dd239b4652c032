"""Parquet tables of any origin, read by a confined child, with pyarrow's errors as ValueErrors.

What a file states about its sizes bounds nothing: one page of a few bytes may be a million rows of a megabyte each.
"""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any

from excb.errors import UserError
from excb.files.confined import confined
from excb.files.foreign import check_memory, open_file, parsing

ROWS = 1024  # that are parsed at once: few enough for the cache
_VALUE, _TIMES = 60, 10  # bytes of a value in Python, and how often `memory_limit` they may take, as of JSON


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
    pyarrow, _ = require_pyarrow(advice)
    with open_file(file):  # which refuses special files
        size = file.stat().st_size

    def table(stream: IO[bytes]) -> Any:
        with pyarrow.ipc.open_stream(stream) as batches:
            return pyarrow.Table.from_batches(_counted(batches, size), batches.schema)

    with parsing():
        return confined(send_batches, str(file), *but, size=size, read=table)


def _counted(batches: Any, size: int) -> Iterator[Any]:
    taken = 0
    for batch in batches:
        taken += batch.nbytes
        check_memory(taken - size)
        yield batch


def send_batches(limit: Callable[[], None], stream: IO[bytes], file: str, *but: str) -> None:
    """In the child: write a table as Arrow's stream, some thousand rows at a time, in columns without dictionaries."""
    pyarrow, parquet = require_pyarrow()
    limit()
    with parquet.ParquetFile(file, pre_buffer=False) as opened:
        facts, fields = opened.metadata, [field for field in opened.schema_arrow if field.name not in but]
        check_memory(_VALUE * facts.num_rows * len(fields) / _TIMES)
        columns = [(field.name, _dense(field.type, pyarrow.types)) for field in fields]
        schema = pyarrow.schema(columns, {**(opened.schema_arrow.metadata or {}), **(facts.metadata or {})})
        names = [field.name for field in fields] if but else None
        with pyarrow.ipc.new_stream(stream, schema) as batches:
            for batch in opened.iter_batches(ROWS, columns=names, use_threads=False):
                arrays = [_filled(column, pyarrow.types) for column in batch.columns]
                batches.write_batch(pyarrow.RecordBatch.from_arrays(arrays, schema=schema))


def _dense(kind: Any, types: Any, *, nested: bool = False) -> Any:
    """The type of a column whose values take room: one value of a dictionary may be that of all rows."""
    if types.is_dictionary(kind) and not nested:
        return kind.value_type
    if types.is_list(kind) and types.is_null(kind.value_type) and not nested:
        return kind  # of empty lists: see `_filled`
    within = getattr(kind, "storage_type", kind)
    if types.is_dictionary(within) or types.is_run_end_encoded(within) or (nested and types.is_null(within)):
        raise ValueError(f"a column of {kind}, whose values take no room in it")
    for number in range(within.num_fields):
        _dense(within.field(number).type, types, nested=True)
    return kind


def _filled(column: Any, types: Any) -> Any:
    """A column without its dictionary, or of lists that are empty if they are of nothing."""
    if types.is_dictionary(column.type):
        return column.dictionary_decode()
    if types.is_list(column.type) and types.is_null(column.type.value_type) and len(column.flatten()):
        raise ValueError("lists of nothing, which take no room in it")
    return column
