"""Headers of Parquet's pages: their sums are those of the file's facts, and tables are no larger than they state."""

import io
import itertools
from typing import Any

import numpy as np
import pytest

from excb.files.stated import pages
from excb.files.stated.pages import Stated, sizes_of_pages
from excb.files.stated.thrift import UnknownError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS = 5000
WAYS: list[dict[str, Any]] = [
    {},
    {"compression": "zstd", "data_page_size": 1000},
    {"compression": "none", "data_page_version": "2.0"},
    {"use_dictionary": False, "write_page_checksum": True, "row_group_size": 700},
    {"use_dictionary": False, "use_byte_stream_split": ["number"], "write_statistics": False},
]


def columns() -> dict[str, Any]:
    random = np.random.default_rng(0)
    flat = pyarrow.array(random.random(3 * ROWS, np.float32))
    return {
        "path": [f"{number}.jpg" for number in range(ROWS)],
        "label": [None if number % 3 else "kiwi" * 20 for number in range(ROWS)],
        "number": random.random(ROWS),
        "few": random.integers(0, 3, ROWS),
        "truth": random.random(ROWS) > 0.5,
        "vector": pyarrow.FixedSizeListArray.from_arrays(flat, 3),
        "list": [list(range(number % 4)) or None for number in range(ROWS)],
    }


def written(way: dict[str, Any]) -> io.BytesIO:
    stream = io.BytesIO()
    parquet.write_table(pyarrow.table(columns()), stream, **way)
    return stream


def lists() -> dict[str, int]:
    return dict.fromkeys(columns(), 0) | {"vector": 3}


def look(stream: io.BytesIO, but: tuple[str, ...] = ()) -> Stated:
    return sizes_of_pages(stream, len(stream.getvalue()), but, 1e6)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_sums_are_those_of_the_facts_at_the_files_end(way: dict[str, Any]) -> None:
    stream = written(way)
    facts, own = parquet.read_metadata(stream), pages._facts(stream, len(stream.getvalue()), 1e6)
    assert [leaf.path for leaf in pages._leaves(own[2])] == [
        facts.schema.column(number).path.encode().split(b".") for number in range(facts.num_columns)
    ]
    for group, number in itertools.product(range(facts.num_row_groups), range(facts.num_columns)):
        chunk = facts.row_group(group).column(number)
        found = list(pages._pages(stream, own[4][group][1][number][3], 1000))
        assert sum(page.values for page in found if page.kind != pages._DICTIONARY) == chunk.num_values
        # Their headers are a part of both sums, and a page of few values may be packed to more.
        sizes = sum(page.unpacked for page in found)
        longest = max(chunk.total_uncompressed_size, chunk.total_compressed_size)
        assert 0 < longest - sizes < 200 * len(found)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_tables_take_no_more_than_is_stated(way: dict[str, Any]) -> None:
    stream = written(way)
    found, table = look(stream), parquet.read_table(stream)
    assert table.nbytes <= found.memory <= 100 * ROWS * 10
    assert found.rows == ROWS
    assert [*found.columns] == table.column_names
    for name, column in found.columns.items():
        assert table.column(name).nbytes <= column.memory + 8 * ROWS
    longest = len("kiwi") * 20 + (4 + len("1.jpg")) * 10  # the label, and at least so many of the paths
    assert (found.longest > longest) == (way.get("use_dictionary") is not False)


def test_columns_that_are_not_read_do_not_count() -> None:
    stream = written({})
    assert look(stream, tuple(set(columns()) - {"few"})).memory < look(stream).memory / 4


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_texts_that_are_differences_are_not_bounded(encoding: str) -> None:
    stream = io.BytesIO()
    table = pyarrow.table({"path": columns()["path"]})
    parquet.write_table(table, stream, use_dictionary=False, column_encoding={"path": encoding})
    with pytest.raises(UnknownError, match="encoding"):
        look(stream)


def header(kind: int, unpacked: int, packed: int, values: int, encoding: int = 0) -> bytes:
    """The header of a page, in Thrift's compact form."""
    own = field(5, 1, values) + field(5, 1, encoding) + field(5, 1, 3) + field(5, 1, 3) + b"\0"
    step = {0: 2, 2: 4}[kind]
    return field(5, 1, kind) + field(5, 1, unpacked) + field(5, 1, packed) + bytes([step << 4 | 12]) + own + b"\0"


def field(kind: int, step: int, value: int) -> bytes:
    value = value << 1 ^ value >> 63
    made = bytes([step << 4 | kind])
    while value > 127:
        made += bytes([value & 127 | 128])
        value >>= 7
    return made + bytes([value])


def column(head: bytes, values: int = 7) -> tuple[int, int]:
    """Bytes of the pages of a column of a file that is nothing else, and their values."""
    found = list(pages._pages(io.BytesIO(head), {5: values, 7: len(head), 9: 0}, pages.MOST_PAGES))
    return sum(page.unpacked for page in found), sum(page.values for page in found)


def test_a_header_by_hand() -> None:
    page = header(0, 3000, 5, 7) + b"12345"
    assert column(page) == (3000, 7)
    assert column(header(0, 2**30, 5, 0) + b"12345" + page) == (2**30 + 3000, 7)
    assert column(header(2, 1, 5, 2**30) + b"12345" + page) == (5 + 3000, 2**30 + 7)


@pytest.mark.parametrize(
    "whole",
    [
        b"",
        header(0, 10, 5, 6) + b"12345",
        header(0, 10, 5, 7, encoding=7) + b"12345",
        header(0, -10, 5, 7) + b"12345",
        header(0, 2**31, 5, 7) + b"12345",
        field(5, 1, 0) + b"\x05\x04" + header(0, 10, 5, 7)[2:] + b"12345",  # a number of its own, not ascending
        header(0, 10, 5, 7)[:-1] + field(5, 15, 1) * 9000 + b"\0",
        b"\x19" * 20,
        b"\xff" * 20,
        header(0, 10, 5, 7).replace(b"\x2c", b"\x3c"),  # of another kind of page
        b"\x1c" * 20,
    ],
)
def test_other_headers_are_refused(whole: bytes) -> None:
    with pytest.raises(UnknownError):
        column(whole)


def test_empty_pages_without_end_are_refused() -> None:
    with pytest.raises(UnknownError, match="pages"):
        column(header(0, 0, 0, 0) * (pages.MOST_PAGES + 1))


def test_damaged_headers_raise_nothing_else() -> None:
    page = header(0, 3000, 5, 7) + b"12345"
    for place, bit in itertools.product(range(len(page)), range(8)):
        damaged = bytearray(page)
        damaged[place] ^= 1 << bit
        try:
            column(bytes(damaged))
        except UnknownError:
            continue


@pytest.mark.parametrize("way", WAYS[:2], ids=str)
def test_damaged_facts_raise_nothing_else(way: dict[str, Any]) -> None:
    whole = written(way | {"row_group_size": ROWS}).getvalue()
    length = int.from_bytes(whole[-8:-4], "little")
    for place in range(len(whole) - 8 - length, len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        try:
            look(io.BytesIO(bytes(damaged)))
        except UnknownError:
            continue


def test_schemas_by_hand() -> None:
    def leaves(*elements: dict[int, Any]) -> list[Any]:
        return [tuple(leaf) for leaf in pages._leaves(list(elements))]

    table, number, group = {4: b"schema", 5: 2}, {1: 1, 4: b"n"}, {4: b"g", 5: 1}
    assert leaves(table, group, {1: 7, 2: 300, 4: b"f"}, number) == [([b"g", b"f"], 7, 300), ([b"n"], 1, 16)]
    for wrong in (
        [table, number],
        [table, number, number, number],
        [table, {1: 1, 4: b"a.b"}, number],
        [table, {1: 8, 4: b"a"}, number],
        [table, {4: b"a"}, number],
        [table, {1: 7, 4: b"a"}, number],
    ):
        with pytest.raises(UnknownError):
            leaves(*wrong)
