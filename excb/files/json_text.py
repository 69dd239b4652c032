"""JSON that anybody may have written: nesting without end and numbers without end are refused as any other nonsense."""

import json
import math
from collections.abc import Callable
from typing import Any

LEAST, MOST = -(2**63), 2**64 - 1  # whole numbers of 64 bits, with a sign and without
_DIGITS = 20  # of these; to read those of a longer one takes time


def parse(text: str | bytes, *, parse_constant: Callable[[str], Any] | None = None, bounded: bool = True) -> Any:
    """The value of a JSON text.

    Args:
        text: as a string, or in UTF-8.
        parse_constant: what NaN and the infinities become, which are no JSON; Python's own floats if None.
        bounded: refuse numbers that no 64 bits hold, for which arithmetic fails far from here. To look at each takes
            time, which counts where there are millions.

    Raises:
        ValueError: it is no JSON, nested more deeply than Python reads, or holds such a number.
    """
    hooks: dict[str, Any] = {"parse_int": _whole, "parse_float": _finite} if bounded else {}
    try:
        return json.loads(text, parse_constant=parse_constant, **hooks)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS or not LEAST <= (value := int(digits)) <= MOST:
        raise ValueError(f"a whole number that no 64 bits hold, {digits[:40]}")
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"a number without bounds, {digits[:40]}")
    return value
