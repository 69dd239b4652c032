"""Parquet, here or by a confined child: the tables of pyarrow, without dictionaries, and damage that is one line."""

import contextlib
import datetime
import io
import multiprocessing
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from excb.errors import RefusedFileError
from excb.files import foreign
from excb.files import parquet as module
from excb.files.confined import confined
from excb.files.foreign import parsing
from excb.files.parquet import ROWS, read_parquet
from tests.fuzz import bombs

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def table(rows: int = 3 * ROWS + 7) -> Any:
    random = np.random.default_rng(0)
    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(random.random(4 * rows, np.float32)), 4)
    columns = {
        "path": [f"{number}.jpg" for number in range(rows)],
        "label": pyarrow.array([None if number % 3 else "kiwi" for number in range(rows)]).dictionary_encode(),
        "names": [["a"] * (number % 3) for number in range(rows)],
        "day": [datetime.date(2026, 1, 1)] * rows,
        "vector": vectors,
        "box": [{"x": number} for number in range(rows)],
    }
    return pyarrow.table(columns).replace_schema_metadata({"excb": "facts"})


@pytest.mark.parametrize("rows", [0, 1, ROWS, 3 * ROWS + 7])
def test_tables_are_those_of_pyarrow(rows: int, tmp_path: Path) -> None:
    parquet.write_table(table(rows), tmp_path / "a.parquet", row_group_size=5000)
    read, whole = read_parquet(tmp_path / "a.parquet"), parquet.read_table(tmp_path / "a.parquet")
    assert read.to_pylist() == whole.to_pylist()
    assert read.schema.metadata[b"excb"] == b"facts"
    assert [str(kind) for kind in read.schema.types] == [
        "string" if str(kind).startswith("dictionary") else str(kind) for kind in whole.schema.types
    ]
    some = read_parquet(tmp_path / "a.parquet", but=("vector", "box"))
    assert some.to_pylist() == whole.drop(["vector", "box"]).to_pylist()


def test_ordinary_tables_need_no_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = table().drop(["box"])
    ways: list[dict[str, Any]] = [{}, {"compression": "zstd", "data_page_version": "2.0"}, {"use_dictionary": False}]
    for way in ways:
        parquet.write_table(whole, tmp_path / "a.parquet", row_group_size=1000, **way)
        with monkeypatch.context() as patch:
            patch.setattr(module, "confined", None)
            here, some = read_parquet(tmp_path / "a.parquet"), read_parquet(tmp_path / "a.parquet", but=("vector",))
        with monkeypatch.context() as patch:
            patch.setattr(module, "_read_here", lambda *_: None)
            there = read_parquet(tmp_path / "a.parquet")
        assert here.to_pylist() == there.to_pylist() == whole.to_pylist()
        assert here.schema.equals(there.schema, check_metadata=True)
        assert some.to_pylist() == whole.drop(["vector"]).to_pylist()


PLAIN = {"use_dictionary": False}
UNBOUNDED: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "records": lambda: (pyarrow.table({"a": [{"x": 1}]}), {}),
    "long texts in lists": lambda: (pyarrow.table({"a": [["x" * 1_000_000], *[["y"]] * 2000]}), {}),
    "differences": lambda: (
        pyarrow.table({"a": ["x"]}),
        bombs.DIFFERENCES | {"column_encoding": {"a": "DELTA_BYTE_ARRAY"}},
    ),
    "points": lambda: (pyarrow.table({"a.b": [1]}), {}),
    "nothing": lambda: (pyarrow.table({"a": [None]}), {}),
    "texts of the other size": lambda: (pyarrow.table({"a": pyarrow.array(["x"], pyarrow.large_string())}), PLAIN),
    "a long end": lambda: (pyarrow.table({"a": [1]}, metadata={"a": "x" * 1_100_000}), {}),
}


@pytest.mark.parametrize("kind", UNBOUNDED)
def test_what_headers_do_not_bound_is_read_by_the_child(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, way = UNBOUNDED[kind]()
    parquet.write_table(whole, tmp_path / "a.parquet", **way)
    called = list[str]()

    def counted(*arguments: Any, **options: Any) -> Any:
        called.append(str(arguments[1]))
        return confined(*arguments, **options)

    monkeypatch.setattr(module, "confined", counted)
    assert read_parquet(tmp_path / "a.parquet").to_pylist() == whole.to_pylist()
    assert called == [str(tmp_path / "a.parquet")]


@pytest.mark.slow
def test_damage_anywhere_is_an_error_or_other_values(tmp_path: Path) -> None:
    """In processes of their own, which would end with a crash of pyarrow's."""
    parquet.write_table(table(300).drop(["box", "names"]), tmp_path / "a.parquet")
    whole, random = (tmp_path / "a.parquet").read_bytes(), np.random.default_rng(seed := secrets.randbits(32))
    for _ in range(10):
        child = multiprocessing.get_context("fork").Process(target=_read_damaged, args=(whole, random.integers(2**32)))
        child.start()
        child.join()
        assert child.exitcode == 0, seed


def _read_damaged(whole: bytes, seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(200):
        damaged = bytearray(whole)
        for place in random.integers(0, len(whole), random.integers(1, 4)):
            damaged[place] = random.integers(256)
        with contextlib.suppress(ValueError, OSError), parsing():
            module._read_here(io.BytesIO(damaged), len(damaged), ())


def test_values_that_take_no_room_are_refused(tmp_path: Path) -> None:
    within = pyarrow.array(["a"] * 6).dictionary_encode()
    nested = pyarrow.table({"a": pyarrow.FixedSizeListArray.from_arrays(within, 2)})
    parquet.write_table(nested, tmp_path / "a.parquet")
    if "dictionary" in str(parquet.read_schema(tmp_path / "a.parquet")):
        with pytest.raises(ValueError, match="take no room"):
            read_parquet(tmp_path / "a.parquet")


def test_lists_of_nothing_are_read_if_they_are_empty(tmp_path: Path) -> None:
    for lists, fits in (([[]] * 5, True), ([[None] * 9] * 5, False)):
        parquet.write_table(pyarrow.table({"a": lists}), tmp_path / "a.parquet")
        if fits:
            assert read_parquet(tmp_path / "a.parquet").to_pylist() == [{"a": []}] * 5
        else:
            with pytest.raises(ValueError, match="take no room"):
                read_parquet(tmp_path / "a.parquet")


def test_damage_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    parquet.write_table(table(100), file)
    whole = file.read_bytes()
    for wrong in (b"", b"PAR1", whole[:-1], whole[: len(whole) // 2], whole[:4] + bytes(400) + whole[404:]):
        file.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"\w") as caught:
            read_parquet(file)
        assert "\n" not in str(caught.value)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        read_parquet(file)
    with pytest.raises(IsADirectoryError):
        read_parquet(tmp_path)
    file.symlink_to("/dev/zero")
    with pytest.raises(RefusedFileError):
        read_parquet(file)


def test_a_text_that_fills_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(foreign.VARIABLE, "0.02")
    places = pyarrow.array(np.zeros(50, np.int32))
    for length, fits in ((100_000, True), (1_000_000, False)):
        column = pyarrow.DictionaryArray.from_arrays(places, pyarrow.array(["x" * length]))
        parquet.write_table(pyarrow.table({"a": column}), tmp_path / "a.parquet")
        if fits:
            assert read_parquet(tmp_path / "a.parquet").column("a").to_pylist() == ["x" * length] * 50
        else:
            with pytest.raises(foreign.TooLargeError, match="EXCB_MEMORY_LIMIT"):
                read_parquet(tmp_path / "a.parquet")
