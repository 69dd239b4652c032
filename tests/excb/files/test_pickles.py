"""Pickles that are looked at before they are built: sound ones pass in every protocol, hostile ones are refused."""

import io
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from excb.files import foreign, pickles
from excb.files.pickles import check_pickle
from tests.fuzz import bombs

keys = st.one_of(st.text(), st.integers(), st.booleans(), st.tuples(st.text(), st.tuples(st.integers(), st.integers())))
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner, inner), st.dictionaries(keys, inner), st.frozensets(keys), st.sets(keys)
    ),
)


def checked(packed: bytes) -> bytes:
    """The bytes that are left after the first pickle."""
    stream = io.BytesIO(packed)
    check_pickle(stream, len(packed))
    return stream.read()


@given(plain, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_values_pass(value: Any, protocol: int) -> None:
    packed = pickle.dumps([value, value, (value, value)], protocol)
    assert checked(packed + b"more") == b"more"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_tensors_and_shared_values_pass(protocol: int) -> None:
    shape = (3, 4)
    values = {"a": np.arange(12), "b": [np.float32(1)] * 100, "shapes": [shape] * 1000, "c": OrderedDict(d={1, 2})}
    assert checked(pickle.dumps(values | {"t": torch.zeros(3)}, protocol)) == b""


@pytest.mark.parametrize("packed", [bombs.nested_keys(30), bombs.nested_keys(60)])
def test_keys_that_repeat_themselves_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="repeat themselves"):
        checked(packed)


def test_nested_keys_are_those_that_python_takes_long_for() -> None:
    """The same with few levels, of which Python's own reader makes what it should."""
    ((key, value),) = pickle.loads(bombs.nested_keys(3)).items()
    assert (key, value) == (((((), ()), ((), ())), (((), ()), ((), ()))), 1)
    assert checked(bombs.nested_keys(3)) == b""


def test_objects_of_a_stated_size_are_refused() -> None:
    with pytest.raises(ValueError, match="bytearray"):
        checked(bombs.SIZED)


@pytest.mark.parametrize("opcode", [b"}", b"]", b"\x8f"])
def test_many_containers_are_refused(opcode: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = bombs.containers(opcode, 2000)
    assert checked(packed) == b""
    monkeypatch.setattr(pickles, "MOST_CONTAINERS", 1000)
    with pytest.raises(ValueError, match="containers"):
        checked(packed)
    monkeypatch.undo()
    monkeypatch.setenv(foreign.VARIABLE, "0.00001")
    with pytest.raises(foreign.TooLargeError):
        checked(packed)


@pytest.mark.parametrize(
    "packed",
    [b"", b"\x80\x02", b"\x80\x02h\x05.", b"\x80\x02\x86.", b"\x80\x02u.", b"junk", b"\x80\x02r\xff\xff\xff\xff."],
)
def test_damage_is_one_kind_of_error(packed: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        checked(packed)
