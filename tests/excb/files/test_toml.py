"""Python's own reader gives back what is written as TOML."""

import tomllib
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excb.errors import UserError
from excb.files import toml

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
VALUES = st.recursive(
    st.text() | NUMBERS | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.text(), st.dictionaries(st.text(), VALUES, max_size=5))
def test_any_table_can_be_read_again(name: str, values: dict[str, Any]) -> None:
    assert tomllib.loads(toml.toml_table(name, values)) == {name: values}


def test_it_is_written_for_people() -> None:
    values = {
        "epochs": 400,
        "figures": {"Table 1": {"linear_top1": 76.5}, "own": {"knn_top1": 71.0}},
        "crops": ["a", "b"],
    }
    assert toml.toml_table("rn50", values) == (
        '[rn50]\nepochs = 400\nfigures."Table 1" = { linear_top1 = 76.5 }\nfigures.own = { knn_top1 = 71.0 }\n'
        'crops = ["a", "b"]\n'
    )


def test_numbers_keep_their_type_and_numpys_are_numbers() -> None:
    read = tomllib.loads(toml.toml_table("a", {"whole": 1, "part": 1.0, "numpy": numpy.float64(76.5), "yes": True}))[
        "a"
    ]
    assert [(value, type(value)) for value in read.values()] == [(1, int), (1.0, float), (76.5, float), (True, bool)]


@pytest.mark.parametrize("value", [None, [1, None], {"deep": {1, 2}}])
def test_what_toml_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(UserError, match="TOML cannot hold"):
        toml.toml_table("a", {"value": value})
