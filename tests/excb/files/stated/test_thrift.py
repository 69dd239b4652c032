"""Thrift's compact form: records as its specification has them, and all that readers may read differently refused."""

from typing import Any

import pytest

from excb.files.stated import thrift
from excb.files.stated.thrift import Compact, UnknownError, number_of, records_of

# The number of a field, then its type; texts, lists and records are what they hold.
SOUND: list[tuple[bytes, dict[int, Any]]] = [
    (b"\0", {}),
    (b"\x15\x0e\0", {1: 7}),
    (b"\x15\x01\x26\xac\x02\0", {1: -1, 3: 150}),
    (b"\x11\x12\x13\x7f\0", {1: True, 2: False, 3: None}),
    (b"\x17" + bytes(8) + b"\x18\x03abc\0", {1: None, 2: b"abc"}),
    (b"\x19\x25\x02\x04\0", {1: [1, 2]}),
    (b"\x19\x28\x01a\x00\0", {1: [b"a", b""]}),
    (b"\x19\x21\x01\x02\0", {1: [None, None]}),
    (b"\x1c\x15\x02\0\x15\x04\0", {1: {1: 1}, 2: 2}),
    (b"\x19\xfc\x10" + bytes(16) + b"\0", {1: [{}] * 16}),
]


@pytest.mark.parametrize(("data", "fields"), SOUND)
def test_records(data: bytes, fields: dict[int, Any]) -> None:
    reader = Compact(data + b"more")
    assert reader.record() == fields
    assert reader.place == len(data)


@pytest.mark.parametrize(
    "data",
    [
        *(data[:-1] for data, _ in SOUND),
        b"\x05\x02\x02\0",  # a number of its own
        b"\x1a\x15\x02\0",  # a set
        b"\x1b\0\0",  # a map
        b"\x15" + b"\xff" * 12 + b"\x01\0",
        b"\x18\xff\xff\xff\xff\x0f\0",
        b"\x19\xf5\xff\xff\xff\xff\x0f\0",
        b"\x19" * 1000,
        b"\x1c" * 1000,
        b"\x19\xfc" + b"\xff\xff\x7f" + bytes(2**21),
    ],
)
def test_others_are_refused(data: bytes) -> None:
    with pytest.raises(UnknownError):
        Compact(data).record()


def test_many_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"\x15\x02" * 20 + b"\0"
    Compact(data).record()
    monkeypatch.setattr(thrift, "MOST_VALUES", 10)
    with pytest.raises(UnknownError, match="many values"):
        Compact(data).record()


def test_fields_of_other_kinds_are_refused() -> None:
    fields: dict[int, Any] = {1: 7, 2: -1, 3: 2**31, 4: True, 5: b"a", 6: [{}], 7: [{}, 1]}
    assert number_of(fields, 1) == 7
    assert number_of(fields, 3, 2**40) == 2**31
    assert records_of(fields, 6) == [{}]
    for number in (2, 3, 4, 5, 6, 8):
        with pytest.raises(UnknownError):
            number_of(fields, number)
    for number in (1, 5, 7, 8):
        with pytest.raises(UnknownError):
            records_of(fields, number)
