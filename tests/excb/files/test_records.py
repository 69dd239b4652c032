"""Rules name the place that is wrong; a record says which field is missing, unknown or wrong, and what it must be."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from excb.files import records
from excb.files.records import Field, RecordError, Rule, check_record, list_of, number_in, optional, record_of, table_of

DATA = record_of({"images": records.count, "root": records.text}, required=["root"], extra=True)
NAMED = record_of({"name": records.words, "data": table_of(DATA), "sizes": optional(list_of(records.number, 2))})


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ({}, None),
        ({"name": "a", "data": {"train": {"root": "", "images": 0, "more": 1}}, "sizes": None}, None),
        ({"sizes": [1, 2.5]}, None),
        ([], ""),
        (None, ""),
        ({"name": " "}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"other": 1}, "other"),
        ({"data": []}, "data"),
        ({"data": {"train": {}}}, "data.train"),
        ({"data": {"train": {"root": "", "images": -1}}}, "data.train.images"),
        ({"data": {3: {"root": ""}}}, "data"),
        ({"sizes": [1]}, "sizes"),
        ({"sizes": [1, math.nan]}, "sizes"),
        ({"sizes": [1, True]}, "sizes"),
    ],
)
def test_the_place_that_is_wrong_is_named(value: Any, wrong: str | None) -> None:
    assert NAMED(value) == wrong


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (records.number, [0, -1.5, 10**400], [True, "1", math.inf, -math.inf, math.nan, None]),
        (records.integer, [0, -3], [1.0, False]),
        (number_in(1, 5, integer=True), [1, 5], [0, 6, 2.0]),
        (records.matching("[a-z]+"), ["abc"], ["", "abc\n", "ä", 3]),
        (records.one_of("a", "b"), ["a"], ["c", ["a"], None]),
        (records.line, ["", "a b"], ["a\n", "\x1b", 1]),
        (records.boolean, [True], [1, None]),
        (records.any_of(records.text, records.count), ["", 3], [-1, None]),
        (records.all_of(records.text, records.one_of("a")), ["a"], ["b", 1]),
    ],
)
def test_values(rule: Rule, good: list[Any], bad: list[Any]) -> None:
    assert [rule(value) for value in good] == [None] * len(good)
    assert [rule(value) for value in bad] == [""] * len(bad)


FIELDS = {"epochs": Field(records.count, "a whole number"), "name": Field(records.text, "text")}


def test_a_record_is_refused_in_one_line_that_names_the_field() -> None:
    check_record({"name": "a", "epochs": 3}, FIELDS, what="row 'a'", required=["name"])
    check_record({"more": 1}, FIELDS, what="row 'a'", extra=True)
    for values, message in (
        ({"epochs": 3}, "row 'a' lacks name"),
        ({"name": "a", "epoch": 3}, "row 'a' has no field 'epoch'; did you mean 'epochs'?"),
        ({"name": "a", "epochs": "\x1b"}, "row 'a': epochs must be a whole number, not '\\x1b'"),
    ):
        with pytest.raises(RecordError) as caught:
            check_record(values, FIELDS, what="row 'a'", required=["name"])
        assert str(caught.value) == message


@dataclass
class Kind:
    name: str
    epochs: int | None = None
    share: float = 0.0
    names: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, str] = field(default_factory=dict)


def test_a_dataclass_states_its_rules() -> None:
    rules = records.rules_of(Kind, most=100)
    good = {"name": "a", "epochs": None, "share": 1, "names": ["a"], "options": {"a": [1]}, "figures": {"a": "b"}}
    bad = {"name": 1, "epochs": 1.5, "share": 101, "names": [1], "options": [], "figures": {"a": 1}}
    assert rules.keys() == good.keys() == bad.keys()
    for name, rule in rules.items():
        assert rule(good[name]) is None, name
        assert rule(bad[name]) is not None, name
