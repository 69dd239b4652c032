"""A Parquet file's facts and the headers of its pages, read before pyarrow: they bound what it becomes in memory.

A page unpacks to no more bytes than its header states, and to no more values. Only a text that stands once in a
dictionary and is meant by many values becomes more: each as long as the dictionary at most. pyarrow's own view of these
facts ends the process where some are damaged.
"""

from collections.abc import Collection, Iterator
from typing import IO, Any, NamedTuple

from excb.files.stated.thrift import Compact, UnknownError, number_of, records_of

MOST_PAGES = 10_000  # of a file: looking at each takes some microseconds
LONGEST_HEADER = 8192  # bytes
_MAGIC = b"PAR1"
# Bytes of a value in memory by the number of its type, also as a decimal or a date, which may be twice the stored.
_WIDTHS = {0: 1, 1: 16, 2: 16, 3: 16, 4: 4, 5: 8, 6: 80, 7: 16}
_TEXT, _FIXED = 6, 7  # types: of any length, and of one that the schema states
_PLACES = 8  # bytes of a value's levels, of one column of one group of rows at a time
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3  # kinds of pages
_PLAIN, _CODES_1, _RLE, _CODES, _SPLIT = 0, 2, 3, 8, 9  # encodings: others have texts that begin as those before
_LARGEST = 2**62


class ColumnValues(NamedTuple):
    """The values of a column: bytes that they take at most, and bytes of one."""

    memory: int
    width: int


class Stated(NamedTuple):
    """The sizes that a file's facts and the headers of its pages state.

    Attributes:
        memory: bytes that its columns become at most, but for texts of dictionaries.
        rows: in all.
        columns: by their names.
        longest: bytes that the texts of dictionaries in one row may have.
    """

    memory: int
    rows: int
    columns: dict[str, ColumnValues]
    longest: int


class _Page(NamedTuple):
    kind: int
    unpacked: int  # bytes
    values: int


class _Leaf(NamedTuple):
    path: list[bytes]
    kind: int
    width: int

    @property
    def name(self) -> str:
        """That of the column of the table."""
        return self.path[0].decode(errors="replace")


def sizes_of_pages(stream: IO[bytes], size: int, but: Collection[str], longest: float) -> Stated:
    """Look at a file's facts, and at the headers of the pages of all columns but some.

    Args:
        stream: the file.
        size: its bytes.
        but: names of columns that will not be read.
        longest: bytes that the facts at its end may have.

    Raises:
        UnknownError: they do not tell, or are not as the format has them.
    """
    facts = _facts(stream, size, longest)
    leaves = list(_leaves(records_of(facts, 2)))
    columns = {leaf.name: ColumnValues(0, leaf.width) for leaf in leaves}
    texts, rows, unpacked, largest, left = dict[str, int](), 0, 0, 0, MOST_PAGES
    for group in records_of(facts, 4):
        rows += number_of(group, 3, _LARGEST)
        chunks = records_of(group, 1)
        if len(chunks) != len(leaves):
            raise UnknownError("other columns than those of the schema")
        for chunk, leaf in zip(chunks, leaves, strict=True):
            own = chunk.get(3)
            if not isinstance(own, dict) or own.get(3) != leaf.path or own.get(1) != leaf.kind or 1 in chunk:
                raise UnknownError("another column than that of the schema")
            if (name := leaf.name) in but:
                continue
            pages = list(_pages(stream, own, left))
            left -= len(pages)
            memory, longest = _of_chunk(pages, leaf)
            columns[name] = ColumnValues(columns[name].memory + memory, max(columns[name].width, leaf.width))
            texts[name] = max(longest, texts.get(name, 0))
            unpacked += sum(page.unpacked for page in pages)
            most = max((page.unpacked for page in pages), default=0)
            values = sum(page.values for page in pages)
            largest = max(largest, number_of(own, 7, _LARGEST) + most + values * _PLACES)
    whole = max(unpacked, sum(column.memory for column in columns.values()))
    return Stated(whole + largest, rows, columns, sum(texts.values()))


def _of_chunk(pages: list[_Page], leaf: _Leaf) -> tuple[int, int]:
    """Bytes of the values of a column's pages, but for texts of its dictionary, and the longest of those.

    A row has any number of texts in a list, which count as the longest.
    """
    memory = sum(page.values for page in pages) * leaf.width
    if leaf.kind != _TEXT:
        return memory, 0
    longest = max((page.unpacked for page in pages if page.kind == _DICTIONARY), default=0)
    memory += sum(page.unpacked + (page.values * longest if len(leaf.path) > 1 else 0) for page in pages)
    return memory, longest


def _facts(stream: IO[bytes], size: int, longest: float) -> dict[int, Any]:
    stream.seek(max(0, size - 8))
    end = stream.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MAGIC or length > min(longest, size - 8):
        raise UnknownError("no facts at its end, or many")
    stream.seek(size - 8 - length)
    return Compact(stream.read(length)).record()


def _leaves(elements: list[dict[int, Any]]) -> Iterator[_Leaf]:
    """The columns that hold values, in the order of the schema; its first element is the table itself."""
    path, left = list[bytes](), [number_of(elements[0], 5)] if elements else [0]  # elements to come, at each level
    for element in elements[1:]:
        while not left[-1]:
            left.pop()
            path = path[:-1]
            if not left:
                raise UnknownError("more elements than the schema states")
        left[-1] -= 1
        if not isinstance(name := element.get(4), bytes) or b"." in name:
            raise UnknownError("a name")  # by which pyarrow could mean another column
        if number_of({5: 0} | element, 5):
            path, left = [*path, name], [*left, element[5]]
            continue
        kind = number_of(element, 1)
        if kind not in _WIDTHS:
            raise UnknownError(f"type {kind}")
        yield _Leaf([*path, name], kind, max(_WIDTHS[kind], number_of(element, 2) if kind == _FIXED else 0))
    if any(left):
        raise UnknownError("fewer elements than the schema states")


def _pages(stream: IO[bytes], column: dict[int, Any], left: int) -> Iterator[_Page]:
    """The pages of a column in a group of rows, until all its values have come, as Arrow reads them."""
    values, place = number_of(column, 5, _LARGEST), number_of(column, 9, _LARGEST)
    place = min(place, number_of(column, 11, _LARGEST) or place) if 11 in column else place
    end = place + number_of(column, 7, _LARGEST)
    while values > 0:
        left -= 1
        if left < 0 or place >= end:
            raise UnknownError("too many pages, or too few")
        stream.seek(place)
        page, after = _page(stream.read(LONGEST_HEADER))
        place += after
        if page.kind != _DICTIONARY:
            values -= page.values
        yield page


def _page(head: bytes) -> tuple[_Page, int]:
    """The page that begins here, and the place after it."""
    reader = Compact(head)
    fields = reader.record()
    kind, unpacked, packed = number_of(fields, 1), number_of(fields, 2), number_of(fields, 3)
    place = {_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}.get(kind)
    if place is None or not isinstance(own := fields.get(place), dict) or {5, 6, 7, 8} & fields.keys() != {place}:
        raise UnknownError(f"a page of kind {kind}")
    values, encoding = number_of(own, 1), number_of(own, 4 if kind == _DATA_2 else 2)
    if encoding not in ((_PLAIN, _CODES_1) if kind == _DICTIONARY else (_PLAIN, _CODES_1, _RLE, _CODES, _SPLIT)):
        raise UnknownError(f"encoding {encoding}")
    return _Page(kind, max(unpacked, packed), values), reader.place + packed  # what is not packed may state any size
