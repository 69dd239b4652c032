"""Tests of JSON that anybody may have written: what is read as Python reads it, and what is refused."""

import json
from pathlib import Path

import pytest

from excb.errors import UserError
from excb.files import json_text


@pytest.mark.parametrize(
    "text",
    ['{"a": [1, -2.5, null, true, "\\u00e9"]}', "[-9223372036854775808, 18446744073709551615]", "NaN", b"[]", "1e308"],
)
def test_values_are_those_of_pythons_own_reader(text: str | bytes) -> None:
    assert repr(json_text.parse(text)) == repr(json.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        "-9223372036854775809",
        "18446744073709551616",
        "[" * 100_000,
        '{"a":' * 100_000,
        "1" * 400,
        "-1e999",
        "{",
        b"\xff",
    ],
)
def test_nonsense_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - words differ
        json_text.parse(text)


def test_numbers_without_bounds_where_nobody_minds() -> None:
    assert json_text.parse("[1e999]", bounded=False) == [float("inf")]


def test_nothing_is_written_that_cannot_be_read(tmp_path: Path) -> None:
    file, odd = tmp_path / "a.json", {"caf\udce9": ["two\nlines", "=1", "\u2028", 2**64 - 1, 0.1, None]}
    json_text.write_json(odd, file)
    assert json_text.parse(file.read_bytes()) == odd
    before = file.read_bytes()
    with pytest.raises(UserError, match=r"not written, since it could not be read again .*more than 64 bits"):
        json_text.write_json({"a": 2**64}, file)
    with pytest.raises(UserError, match="not written"):
        json_text.write_json({"a": float("nan")}, file, allow_nan=False)
    with pytest.raises(TypeError, match="Path is not JSON serializable"):  # a bug of the caller keeps its traceback
        json_text.write_json({"a": file}, file)
    assert (file.read_bytes(), list(tmp_path.iterdir())) == (before, [file])


def test_equal_numbers_of_a_huge_text_are_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "_HUGE", 10)
    monkeypatch.setattr(json_text, "_DISTINCT", 2)
    numbers = [1.5, -2.25, 1.5, 3e-7, 1e300, 1e300, 7, 1.5]
    read = json_text.parse(json.dumps(numbers), bounded=False)
    assert read == numbers
    assert list(map(type, read)) == list(map(type, numbers))
    assert read[0] is read[2] is read[7]
    assert read[4] is not read[5]  # more are not remembered
    assert json_text.parse("[1e999, 1.5]      ", bounded=False) == [float("inf"), 1.5]
