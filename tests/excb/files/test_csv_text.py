"""Tests of CSV: read back as it was, but for what a spreadsheet would run."""

import csv
import io

import pytest

from excb.files.cells import path_cell, plain_text, text_cell
from excb.files.csv_text import csv_table


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
