"""Pickles that are looked at before they are built: sound ones pass in every protocol, hostile ones are refused."""

import io
import pickle
import pickletools
import warnings
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
    return packed[check_pickle(packed) :]


@given(plain, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_values_pass(value: Any, protocol: int) -> None:
    packed = pickle.dumps([value, value, (value, value)], protocol)
    assert checked(packed + b"more") == b"more"


class _Plain(pickle.Unpickler):
    """Python's own reader, of plain values alone."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, _number: Any) -> None:
        return None


@given(plain, st.integers(0, pickle.HIGHEST_PROTOCOL), st.data())
def test_what_passes_with_other_bytes_ends_where_python_ends(value: Any, protocol: int, data: Any) -> None:
    packed = bytearray(pickle.dumps([value, (value, value)], protocol))
    for _ in range(3):
        place = data.draw(st.integers(0, len(packed) - 1))
        packed[place] = data.draw(st.integers(0, 255))
    more = b".more."
    try:
        left = checked(bytes(packed) + more)
    except ValueError:
        return
    stream = io.BytesIO(bytes(packed) + more)
    try:
        with warnings.catch_warnings(action="ignore"):
            _Plain(stream).load()
    except Exception:  # noqa: BLE001 - it refuses arguments that are only passed over here
        return
    assert stream.read() == left


@pytest.mark.parametrize("code", pickletools.opcodes, ids=lambda code: code.name)
def test_arguments_are_as_long_as_pickletools_says(code: pickletools.OpcodeInfo) -> None:
    text, name = b"'a'", code.arg.name if code.arg else ""
    made = {
        "": b"",
        "stringnl_noescape_pair": b"module\nname\n",
        **dict.fromkeys(("decimalnl_short", "decimalnl_long", "floatnl"), b"12\n"),
        **dict.fromkeys(("stringnl", "stringnl_noescape", "unicodestringnl"), text + b"\n"),
        **dict.fromkeys(("bytes1", "string1", "unicodestring1", "long1"), b"\x03abc"),
        **dict.fromkeys(("bytes4", "string4", "unicodestring4", "long4"), b"\x03\0\0\0abc"),
        **dict.fromkeys(("bytes8", "bytearray8", "unicodestring8"), b"\x03" + bytes(7) + b"abc"),
        "uint1": b"\1",
        "uint2": b"\1\0",
        "int4": b"\1\0\0\0",
        "uint4": b"\1\0\0\0",
        "uint8": bytes(8),
        "float8": bytes(8),
    }[name]
    packed = b"((N(NN" + b"NNNN" + code.code.encode("latin1") + made + b"N."
    steps = [place for _, _, place in pickletools.genops(packed)]
    stepped = list[int]()
    place = 0
    while place < len(packed):
        stepped.append(place)
        length = pickles._LENGTH_OF[packed[place]]
        plain = 0 <= length < pickles._COUNTED
        place = place + 1 + length if plain else pickles._after(packed, place + 1, length, len(packed))
        if packed[stepped[-1]] == ord("."):
            break
    assert stepped == steps


def test_a_mark_is_taken_as_python_takes_it() -> None:
    itself: list[Any] = []
    itself.append((itself, 1))  # protocol 0 pops what it has pushed, and the mark
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert checked(pickle.dumps(itself, protocol)) == b""
    for packed in (b"(N(\x85.", b"N(\x86.", b"(a.", b"(Na.", b"(0N0."):
        with pytest.raises(ValueError, match=r"\w"):
            checked(packed)
    assert checked(b"(0N.") == b""


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
