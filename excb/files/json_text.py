"""JSON of unknown origin: nesting too deep and numbers too large are refused like any other invalid text."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from excb.files.atomic import read_again, write_text
from excb.files.foreign import check_memory, memory_limit

LEAST, MOST = -(2**63), 2**64 - 1  # whole numbers of 64 bits, signed and unsigned
_DIGITS = 20  # of these; longer ones take time to parse
_LARGE = 2**20  # characters; what fewer become is not worth a look
# Bytes of the objects that a sign begins, in CPython: a list, a table, and an item with its place and a number.
_BUILT = {"[": 88, "{": 248, ",": 40}
_MOST_BUILT = 1 + max(_BUILT.values())  # for any character: what fits so needs no counting
_HUGE = 2**29  # characters, of which equal numbers become one object: half the memory, a third more time
_DISTINCT = 2**18  # numbers that are remembered, in 50 MB at most
_TIMES = 10  # this many times `memory_limit` may be built: it is a bound, and most texts stay far below it


def parse(
    text: str | bytes,
    *,
    parse_constant: Callable[[str], Any] | None = None,
    bounded: bool = True,
    large: bool = False,
) -> Any:
    """The value of a JSON text.

    Args:
        text: as a string, or in UTF-8.
        parse_constant: converts NaN and the infinities, which are not JSON; Python's own floats if None.
        bounded: refuse numbers that do not fit 64 bits, with which arithmetic would fail later. The check of each
            takes time that matters for millions.
        large: the text may fill the memory, as one that this program made.

    Raises:
        ValueError: it is not JSON, is nested too deeply, holds such a number, or would fill the memory.
    """
    if len(text) > _LARGE and not large and len(text) * _MOST_BUILT > _TIMES * memory_limit():
        check_memory(_built(text) / _TIMES)
    hooks: dict[str, Any] = {"parse_int": _whole, "parse_float": _finite} if bounded else {}
    if len(text) > _HUGE and not bounded:
        hooks = {"parse_float": _Shared().__getitem__}
    try:
        return json.loads(text, parse_constant=parse_constant, **hooks)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def write_json(values: Any, file: Path, *, indent: int | None = 2, allow_nan: bool = True, advice: str = "") -> None:
    """Write plain values that `parse` reads, with the arguments and errors of `atomic.new_file`.

    Args:
        values: of dictionaries, lists and scalars.
        file: the file.
        indent: of inner values, None for one line.
        allow_nan: NaN and the infinities, which are not JSON, are written as Python reads them; else they are refused.
        advice: for the message, if it cannot be written.
    """
    with read_again(file):  # not for TypeError: a value of another kind is a bug, and its traceback finds it
        text = json.dumps(values, indent=indent, allow_nan=allow_nan) + "\n"
        parse(text, large=True)
    write_text(text, file, advice=advice)


def _built(text: str | bytes) -> int:
    """Bytes that the values of a text may take, without reading it; signs within strings count too."""
    count = text.count if isinstance(text, str) else lambda sign: text.count(sign.encode())
    return len(text) + sum(size * count(sign) for sign, size in _BUILT.items())


class _Shared(dict[str, float]):
    """Numbers by their digits. Coordinates of polygons repeat, and each would be an object of 24 bytes."""

    def __missing__(self, digits: str) -> float:
        number = float(digits)
        if len(self) < _DISTINCT:
            self[digits] = number
        return number


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS or not LEAST <= (value := int(digits)) <= MOST:
        raise ValueError(f"a whole number of more than 64 bits, {digits[:40]}")
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"a number out of range, {digits[:40]}")
    return value
