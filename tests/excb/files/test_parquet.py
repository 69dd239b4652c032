"""Parquet by a confined child: the tables of pyarrow, without dictionaries, and damage that is one line."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from excb.errors import RefusedFileError
from excb.files import foreign
from excb.files.parquet import ROWS, read_parquet

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
