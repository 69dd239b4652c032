"""Tests of CSV: read back as it was, but for what a spreadsheet would run."""

import csv
import io
from pathlib import Path

import pytest

from excb.errors import RefusedFileError
from excb.files import csv_text, foreign
from excb.files.csv_text import check_table, csv_table, path_cell, plain_table, plain_text, text_cell


def test_rows_are_read_back_and_nothing_is_a_formula() -> None:
    rows: list[list[object]] = [["a,b", 'quoted "text"', "line\nbreak", -1.5, None], ["=1+1", "+1", "-1", "@x", "\t="]]
    head, first, second = csv.reader(io.StringIO(csv_table(list("vwxyz"), rows), newline=""))
    assert head == list("vwxyz")
    assert first == ["a,b", 'quoted "text"', "line\nbreak", "-1.5", ""]
    assert second == ["'=1+1", "'+1", "'-1", "'@x", "'\t="]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-x", "@x", "\tx", "'=1", "''-x", "'quoted'", "'", "kiwi", "", "a=1"])
def test_no_text_is_a_formula_and_all_are_read_back(text: str) -> None:
    assert plain_text(text_cell(text)) == text
    assert text_cell(text)[:1] not in ("=", "+", "-", "@", "\t", "\r")
    assert path_cell(text)[:1] not in ("=", "+", "-", "@", "\t", "\r")


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_breaks_of_lines_in_names_are_no_rows(ends: str) -> None:
    rows = [["a\rb", "a\nb"], ["a\r\nb", "caf\udce9\u2028"]]
    text = plain_table(["x", "y"], rows, ends=ends)
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["x", "y"], *rows]
    assert text.startswith(f"x,y{ends}")
    assert text.endswith(ends)


@pytest.mark.parametrize("text", ["x\n", "x\n1\n2\n", "x\n1,2\n", "x\n2\n", "x\n1\r2\n", f"x\n{'1' * 200_000}\n"])
def test_a_table_that_is_read_as_another_is_found(text: str) -> None:
    check_table(io.StringIO("x\n1\n", newline=""), [["x"], [1]])
    with pytest.raises(ValueError, match="would"):
        check_table(io.StringIO(text, newline=""), [["x"], [1]])


def test_lists_and_tables_that_fill_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.csv"
    for text in ("\n" * 50_000, "a,b\n" * 50_000, "," * 300_000):
        file.write_text(text, encoding="utf-8")
        assert csv_text.read_listing(file) == text
        with monkeypatch.context() as small:
            small.setenv(foreign.VARIABLE, "0.001")
            with pytest.raises(RefusedFileError, match="EXCB_MEMORY_LIMIT"):
                csv_text.read_listing(file)


def test_rows_are_those_of_python_and_damage_is_a_value_error() -> None:
    assert csv_text.read_rows(io.StringIO('a,"b\nc"\n\n1,2\n')) == [["a", "b\nc"], [], ["1", "2"]]
    assert csv_text.read_rows(["a;b"], ";") == [["a", "b"]]
    with pytest.raises(ValueError, match="field larger"):
        csv_text.read_rows(["a" * 200_000])
