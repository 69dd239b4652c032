"""JSON of unknown origin: nesting too deep and numbers too large are refused like any other invalid text."""

import json
import math
from collections.abc import Callable
from typing import Any

LEAST, MOST = -(2**63), 2**64 - 1  # whole numbers of 64 bits, signed and unsigned
_DIGITS = 20  # of these; longer ones take time to parse


def parse(text: str | bytes, *, parse_constant: Callable[[str], Any] | None = None, bounded: bool = True) -> Any:
    """The value of a JSON text.

    Args:
        text: as a string, or in UTF-8.
        parse_constant: converts NaN and the infinities, which are not JSON; Python's own floats if None.
        bounded: refuse numbers that do not fit 64 bits, with which arithmetic would fail later. The check of each
            takes time that matters for millions.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or holds such a number.
    """
    hooks: dict[str, Any] = {"parse_int": _whole, "parse_float": _finite} if bounded else {}
    try:
        return json.loads(text, parse_constant=parse_constant, **hooks)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS or not LEAST <= (value := int(digits)) <= MOST:
        raise ValueError(f"a whole number of more than 64 bits, {digits[:40]}")
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"a number out of range, {digits[:40]}")
    return value
