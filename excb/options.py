"""Fields of settings dataclasses: documented when they are declared, and checked against their choices."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

from excb.errors import require


def option(
    default: Any,
    doc: str,
    *,
    paper: str = "",
    source: str = "paper",
    choices: Callable[[], Iterable[str]] | None = None,
) -> Any:
    """A dataclass field with its documentation.

    Args:
        default: its default.
        doc: what it does.
        paper: what the paper used.
        source: where the default comes from.
        choices: returns the names that it takes, where they are in a table and not in a `Literal`.
    """
    metadata = {"doc": doc, "paper": paper, "source": source} | ({} if choices is None else {"choices": choices})
    return dataclasses.field(default=default, metadata=metadata)


def field_types(settings: type[Any]) -> dict[str, Any]:
    """The type of every field of a settings dataclass; a `Literal` also where `option` has its choices in a table."""
    types = get_type_hints(settings)
    tables = {field.name: field.metadata.get("choices") for field in dataclasses.fields(settings)}
    return types | {name: Literal[tuple(names())] for name, names in tables.items() if names is not None}


def require_choices(section: str, settings: Any) -> None:
    """Raise UserError where a field of a settings dataclass that has choices holds anything else."""
    for name, annotation in field_types(type(settings)).items():
        if get_origin(annotation) is Literal:
            value, choices = getattr(settings, name), get_args(annotation)
            require(value in choices, f"{section}.{name} must be one of {', '.join(choices)}, not '{value}'")
