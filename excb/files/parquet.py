"""Parquet tables of any origin: parsed here where headers bound what they take, else by a confined child.

What a file states about its sizes bounds little: one page of a few bytes may be a million rows of a megabyte each.
pyarrow's errors are ValueErrors.
"""

import io
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from excb.errors import UserError, first_line
from excb.files.confined import confined
from excb.files.foreign import check_memory, memory_limit, open_file, parsing
from excb.files.stated.pages import Stated, sizes_of_pages
from excb.files.stated.thrift import UnknownError

ROWS = 1024  # that are parsed at once: few enough for the cache
_LEAST_ROWS = 64  # that are parsed at once in this process: of fewer, each takes time
_VALUE, _TIMES = 60, 10  # bytes of a value in Python, and how often `memory_limit` they may take, as of JSON
_FACTS = 1000  # times their bytes that the facts at a file's end may take


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
    with open_file(file) as stream:  # which refuses special files
        size = stream.seek(0, io.SEEK_END)
        with parsing():
            try:
                table = _read_here(stream, size, but)
            except OSError as error:  # of pyarrow, for damage
                raise ValueError(f"{type(error).__name__}: {first_line(error)}") from None
    if table is not None:
        return table

    def received(stream: IO[bytes]) -> Any:
        with pyarrow.ipc.open_stream(stream) as batches:
            return pyarrow.Table.from_batches(_counted(batches, size), batches.schema)

    with parsing():
        return confined(send_batches, str(file), *but, size=size, read=received)


def _read_here(stream: IO[bytes], size: int, but: Collection[str]) -> Any:
    """The table, parsed in this process; None where its headers do not bound what that takes."""
    pyarrow, parquet = require_pyarrow()
    most = memory_limit()
    try:
        found = sizes_of_pages(stream, size, but, most / _FACTS)
    except UnknownError:
        return None
    _check_rows(found.rows, len(found.columns.keys() - {*but}))
    rows = min(ROWS, most // max(1, found.longest))
    with parquet.ParquetFile(stream, pre_buffer=False) as opened:
        if rows < _LEAST_ROWS or not _fits(found, [f for f in opened.schema_arrow if f.name not in but], most + size):
            return None
        schema = _schema_of(opened, but)
        batches = _batches(opened, schema, rows, schema.names if but else None)
        return pyarrow.Table.from_batches(_counted(batches, size), schema)


def _fits(found: Stated, fields: list[Any], most: int) -> bool:
    """Whether columns that state so much take no more than so many bytes, and are of kinds of which that is known."""
    pyarrow, _ = require_pyarrow()
    memory = found.memory
    for field in fields:
        values = _values_a_row(field.type, pyarrow.types)
        if values is None or field.name not in found.columns:
            return False
        column = found.columns[field.name]  # a row without its list has room for it
        memory += max(0, values * found.rows * column.width - column.memory)
    return memory <= most


def _check_rows(rows: int, columns: int) -> None:
    """Raise TooLargeError if the values of a table would fill the memory once they are Python's."""
    check_memory(_VALUE * rows * columns / _TIMES)


def _schema_of(opened: Any, but: Collection[str]) -> Any:
    """The schema of a file but for some columns and all dictionaries, with the metadata at its end."""
    pyarrow, _ = require_pyarrow()
    schema, more = opened.schema_arrow, opened.metadata.metadata
    columns = [(field.name, _dense(field.type, pyarrow.types)) for field in schema if field.name not in but]
    return pyarrow.schema(columns, {**(schema.metadata or {}), **(more or {})})


def _values_a_row(kind: Any, types: Any) -> int | None:
    """How many values a row of a column has where that is fixed, 0 for any number; None for what is not read here."""
    if types.is_fixed_size_list(kind):
        return int(kind.list_size) if types.is_primitive(kind.value_type) else None
    inner = kind.value_type if types.is_dictionary(kind) or types.is_list(kind) else kind
    text = types.is_string(inner) or types.is_binary(inner)
    return 0 if text or (types.is_primitive(inner) and not types.is_dictionary(kind)) else None


def _counted(batches: Iterable[Any], size: int) -> Iterator[Any]:
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
        schema = _schema_of(opened, but)
        _check_rows(opened.metadata.num_rows, len(schema))
        with pyarrow.ipc.new_stream(stream, schema) as written:
            for batch in _batches(opened, schema, ROWS, schema.names if but else None):
                written.write_batch(batch)


def _batches(opened: Any, schema: Any, rows: int, names: list[str] | None) -> Iterator[Any]:
    """So many rows of a file at a time, in columns without dictionaries."""
    pyarrow, _ = require_pyarrow()
    types = pyarrow.types
    of_nothing = any(types.is_list(kind) and types.is_null(kind.value_type) for kind in schema.types)
    for batch in opened.iter_batches(rows, columns=names, use_threads=False):
        if batch.schema.equals(schema) and not of_nothing:
            yield batch
        else:
            arrays = [_filled(column, types) for column in batch.columns]
            yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


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
        check_memory(_bytes_of(column, types))
        return column.dictionary_decode()
    if types.is_list(column.type) and types.is_null(column.type.value_type) and len(column.flatten()):
        raise ValueError("lists of nothing, which take no room in it")
    return column


def _bytes_of(column: Any, types: Any) -> int:
    """Bytes of what a column means that has it in a dictionary. Raises IndexError for places beyond it.

    Arrow itself does not look.
    """
    from pyarrow import compute

    values = column.dictionary
    text = types.is_string(values.type) or types.is_binary(values.type)
    sizes = compute.binary_length(values) if text else values
    taken = sizes.take(column.indices)
    return int(compute.sum(taken).as_py() or 0) if text else taken.nbytes
