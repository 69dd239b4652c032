"""Fields of settings dataclasses: documented when they are declared, and checked against their types and choices."""

import dataclasses
import math
import operator
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from excb.console import plural
from excb.errors import UserError, nearest_name, require

REQUIRED = dataclasses.MISSING  # the default of an option that has none
_KINDS = {int: "a whole number", float: "a number", str: "text", Path: "a path"}


def option(
    default: Any,
    doc: str,
    *,
    paper: str = "",
    source: str = "paper",
    choices: Callable[[], Iterable[str]] | None = None,
    **shell: Any,
) -> Any:
    """A dataclass field with its documentation.

    Args:
        default: its default, or `REQUIRED`.
        doc: its description.
        paper: the paper's value.
        source: where the default comes from.
        choices: returns the names that it takes, where they are in a table and not in a `Literal`.
        shell: how a command line shows it, for `excb.option_parser`: `metavar`, `group`, `flag`, `off`, `positional`;
            and `files_only`: it changes nothing but written files.
    """
    metadata = {"doc": doc, "paper": paper, "source": source, "shell": shell}
    return dataclasses.field(default=default, metadata=metadata | ({} if choices is None else {"choices": choices}))


def field_types(settings: type[Any]) -> dict[str, Any]:
    """The type of every field of a settings dataclass; a `Literal` also where `option` has its choices in a table."""
    types_of = get_type_hints(settings)
    tables = {field.name: field.metadata.get("choices") for field in dataclasses.fields(settings)}
    return types_of | {name: Literal[tuple(names())] for name, names in tables.items() if names is not None}


def require_choices(section: str, settings: Any) -> None:
    """Raise UserError where a field of a settings dataclass that has choices holds anything else."""
    for name, annotation in field_types(type(settings)).items():
        if get_origin(annotation) is Literal:
            value, choices = getattr(settings, name), get_args(annotation)
            require(value in choices, f"{section}.{name} must be one of {', '.join(choices)}, not '{value}'")


def converted(name: str, value: Any, annotation: Any) -> Any:
    """A field's value from what Python code gave for it, where nothing is lost by it.

    An int serves as a float, a list or range as a tuple, one value as a tuple of one, text as a path, a path as text.
    Text is never read as a number, a switch or None.

    Args:
        name: of the field, for messages.
        value: any object.
        annotation: the field's type, as `field_types` gives it.

    Raises:
        UserError: the value is of another type, or no choice.
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        return _of_any(name, value, parts)
    if origin is Literal:
        hint = nearest_name(value, map(str, parts)) if isinstance(value, str) else ""
        require(value in parts, f"{name} must be one of {', '.join(map(str, parts))}, not {value!r}{hint}")
        return value
    if origin is tuple:
        return _tuple(name, value, parts)
    if origin is not None and issubclass(origin, Mapping):
        require(isinstance(value, Mapping), f"{name} takes a dictionary, not {value!r}")
        kinds = parts or (Any, Any)
        return {converted(name, key, kinds[0]): converted(name, item, kinds[1]) for key, item in value.items()}
    return _scalar(name, value, annotation)


def _of_any(name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    if value is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    for kind in kinds[:-1]:
        try:
            return converted(name, value, kind)
        except UserError:
            continue
    return converted(name, value, kinds[-1])


def _tuple(name: str, value: Any, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    several = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    items = tuple(value) if several else (value,)
    if parts[-1] is Ellipsis:
        return tuple(converted(name, item, parts[0]) for item in items)
    require(len(items) == len(parts), f"{name} takes {plural(len(parts), 'value')}, not {value!r}")
    return tuple(converted(name, item, part) for item, part in zip(items, parts, strict=True))


def _scalar(name: str, value: Any, kind: Any) -> Any:
    if kind is bool:
        require(isinstance(value, bool), f"{name} is true or false, not {value!r}")
        return value
    wrong = UserError(f"{name} takes {_KINDS.get(kind, kind)}, not {value!r}")
    if kind in (int, float):
        if isinstance(value, bool | str) or (kind is float and not hasattr(value, "__float__")):
            raise wrong
        try:
            number = operator.index(value) if kind is int else float(value)
        except TypeError:
            raise wrong from None
        except OverflowError:  # a whole number beyond float64
            number = math.inf
        require(kind is int or math.isfinite(number), f"{name} takes a finite number, not {value!r}")
        return number
    if kind in (str, Path):
        if not isinstance(value, str | os.PathLike):
            raise wrong
        text = os.fspath(value)
        return text if kind is str else Path(text)
    return value
