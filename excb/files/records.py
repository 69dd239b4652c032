"""The one validator of records of unknown origin: rules for values, and for the fields of a table.

A rule takes a value and returns None, or the path of what is wrong, such as "data.train.images", or "" for the value
itself. Rules are built from rules: `record_of({"name": text, "sizes": list_of(count)})`.
"""

import math
import re
import reprlib
from collections.abc import Callable, Collection, Mapping
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from excb.errors import nearest_name

Rule = Callable[[Any], str | None]


class RecordError(ValueError):
    """An invalid record. The message names the first wrong field."""


class Field(NamedTuple):
    """A field of a record: its rule, and the rule in words for messages."""

    rule: Rule
    words: str


def check_record(
    values: Mapping[str, Any],
    fields: Mapping[str, Field],
    *,
    what: str,
    required: Collection[str] = (),
    extra: bool = False,
) -> None:
    """Refuse a record with fields missing, unknown or wrong.

    Args:
        values: the record.
        fields: allowed fields.
        what: the record's name in messages, such as "checkpoint 'mine'".
        required: fields that it must have.
        extra: whether it may have other fields as well.

    Raises:
        RecordError: names the field, and what it must be.
    """
    if missing := [name for name in required if name not in values]:
        raise RecordError(f"{what} lacks {', '.join(missing)}")
    for name, value in values.items():
        if name in fields:
            if fields[name].rule(value) is not None:
                raise RecordError(f"{what}: {name} must be {fields[name].words}, not {_beginning(value)}")
        elif not extra:
            raise RecordError(f"{what} has no field {name!r}{nearest_name(str(name), fields)}")


def _beginning(value: Any) -> str:
    """A value's first 80 characters in ASCII. Lists of lists are cut: as text, few of a pickle's fill any memory."""
    if isinstance(value, dict | list | tuple):
        return reprlib.repr(value).encode("ascii", "backslashreplace").decode()[:80]
    return ascii(value)[:80]


def condition(holds: Callable[[Any], bool]) -> Rule:
    """The rule that a condition holds."""
    return lambda value: None if holds(value) else ""


def number_in(least: float, most: float, *, integer: bool = False) -> Rule:
    """A finite number within bounds, not True or False."""
    kind = int if integer else (int, float)
    return condition(
        lambda value: (
            isinstance(value, kind)
            and not isinstance(value, bool)
            and least <= value <= most
            and -math.inf < value < math.inf  # not `isfinite`, which fails for whole numbers of 400 digits
        )
    )


def matching(pattern: str) -> Rule:
    """Text that matches all of a pattern."""
    return condition(lambda value: isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None)


def one_of(*choices: str) -> Rule:
    """One of some texts."""
    return condition(lambda value: isinstance(value, str) and value in choices)


anything: Rule = condition(lambda _value: True)
text: Rule = condition(lambda value: isinstance(value, str))
line: Rule = condition(lambda value: isinstance(value, str) and value.isprintable())
words: Rule = condition(lambda value: isinstance(value, str) and value.isprintable() and value.strip() != "")
boolean: Rule = condition(lambda value: isinstance(value, bool))
number: Rule = number_in(-math.inf, math.inf)
integer: Rule = number_in(-math.inf, math.inf, integer=True)
count: Rule = number_in(0, math.inf, integer=True)


def optional(rule: Rule) -> Rule:
    """None, or what another rule accepts."""
    return lambda value: None if value is None else rule(value)


def any_of(*rules: Rule) -> Rule:
    """A rule that accepts what any of several rules accepts."""
    return condition(lambda value: any(rule(value) is None for rule in rules))


def all_of(*rules: Rule) -> Rule:
    """A rule that accepts what all of several rules accept."""
    return lambda value: next((wrong for rule in rules if (wrong := rule(value)) is not None), None)


def list_of(rule: Rule, length: int | None = None) -> Rule:
    """A list, of `length` if given. The path of a wrong item is the list's own."""
    return condition(
        lambda value: (
            isinstance(value, list | tuple)
            and (length is None or len(value) == length)
            and all(rule(item) is None for item in value)
        )
    )


def table_of(rule: Rule, names: Rule = text) -> Rule:
    """A table with any names."""

    def wrong(value: Any) -> str | None:
        if not isinstance(value, dict) or any(names(name) is not None for name in value):
            return ""
        return _first_wrong((name, rule(item)) for name, item in value.items())

    return wrong


table: Rule = table_of(anything)


def record_of(fields: Mapping[str, Rule], *, required: Collection[str] = (), extra: bool = False) -> Rule:
    """A table with some of these fields, and with others if `extra` is set."""

    def wrong(value: Any) -> str | None:
        if not isinstance(value, dict) or not all(name in value for name in required):
            return ""
        if not extra and (odd := [name for name in value if name not in fields]):
            return str(odd[0])
        return _first_wrong((name, fields[name](item)) for name, item in value.items() if name in fields)

    return wrong


def _first_wrong(items: Any) -> str | None:
    return next((f"{name}.{inner}".rstrip(".") for name, inner in items if inner is not None), None)


def rules_of(kind: type, most: float = math.inf) -> dict[str, Rule]:
    """The rule of every field of a dataclass, from its annotation. No number may be larger than `most`."""
    return {name: _of_type(annotation, most) for name, annotation in get_type_hints(kind).items()}


def _of_type(annotation: Any, most: float) -> Rule:
    origin, parts = get_origin(annotation) or annotation, get_args(annotation)
    if origin is UnionType:
        return any_of(*(_of_type(part, most) for part in parts))
    if origin is tuple:  # of any length, such as `tuple[str, ...]`
        return list_of(_of_type(parts[0], most))
    if origin is dict:
        return table_of(_of_type(parts[1], most))
    if origin in (int, float):
        return number_in(-most, most, integer=origin is int)
    return anything if annotation is Any else condition(lambda value: isinstance(value, origin))
