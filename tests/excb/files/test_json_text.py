"""Tests of JSON that anybody may have written: what is read as Python reads it, and what is refused."""

import json

import pytest

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
