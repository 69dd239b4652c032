"""Records in Thrift's compact form, read strictly: only what every writer makes, which each reader reads alike."""

from typing import Any, NoReturn

MOST_VALUES = 100_000  # of one record, with all that it holds
_DEPTH = 12  # of records within records
_TRUE, _FALSE, _BYTE, _NUMBERS, _DOUBLE, _TEXT, _LIST, _RECORD = 1, 2, 3, (4, 5, 6), 7, 8, 9, 12


class UnknownError(Exception):
    """A file's headers do not tell what it becomes in memory."""


class Compact:
    """Reads one record and what it holds.

    Records are dictionaries of fields by their numbers; lists are lists, and texts bytes.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self.place, self._left = data, 0, MOST_VALUES

    def record(self, depth: int = 0) -> dict[int, Any]:
        """The record that begins here. Raises UnknownError where it is damaged, or another reader may see another."""
        fields, number, data = dict[int, Any](), 0, self._data
        try:
            while start := data[self.place]:
                self.place += 1
                number += start >> 4
                if start < 16:  # a number of its own: they may not ascend
                    _unknown("a field without its number")
                kind = start & 15
                fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        except IndexError:
            _unknown("a record without its end")
        self.place += 1
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > _DEPTH:
            _unknown("many values")
        if kind in _NUMBERS:
            value = self._count()
            return value >> 1 ^ -(value & 1)
        if kind == _TEXT:
            length = self._count()
            self.place += length
            return self._data[self.place - length : self.place]
        if kind == _RECORD:
            return self.record(depth + 1)
        if kind == _LIST:
            return self._list(depth)
        if kind in (_BYTE, _DOUBLE):
            self.place += 1 if kind == _BYTE else 8
            return None
        return _unknown(f"a field of kind {kind}")

    def _list(self, depth: int) -> list[Any]:
        head = self._data[self.place]
        self.place += 1
        size, kind = head >> 4, head & 15
        if size == 15:
            size = self._count()
        if size > self._left:
            _unknown("many values")
        if kind in (_TRUE, _FALSE):  # which take a byte each here
            kind = _BYTE
        return [self._value(kind, depth + 1) for _ in range(size)]

    def _count(self) -> int:
        """A number of seven bits a byte."""
        data, place = self._data, self.place
        byte = data[place]
        value, shift = byte & 127, 7
        while byte & 128:
            place += 1
            byte = data[place]
            value |= (byte & 127) << shift
            shift += 7
        self.place = place + 1
        if shift > 70:
            _unknown("a number of more than 64 bits")
        return value


def _unknown(reason: str) -> NoReturn:
    raise UnknownError(reason)


def number_of(fields: dict[int, Any], number: int, most: int = 2**31) -> int:
    """A field that is a whole number of at least 0 and less than `most`. Raises UnknownError."""
    value = fields.get(number)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < most:
        _unknown(f"no field {number}")
    return value


def records_of(fields: dict[int, Any], number: int) -> list[dict[int, Any]]:
    """A field that is a list of records. Raises UnknownError."""
    value = fields.get(number)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        _unknown(f"no field {number}")
    return value
