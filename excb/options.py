"""Fields of settings dataclasses: documented when they are declared, and checked against their `Literal` types."""

import dataclasses
from typing import Any, Literal, get_args, get_origin, get_type_hints

from excb.errors import require


def option(default: Any, doc: str, *, paper: str = "", source: str = "paper") -> Any:
    """A dataclass field with its documentation: what it does, what the paper used, where our default comes from."""
    return dataclasses.field(default=default, metadata={"doc": doc, "paper": paper, "source": source})


def require_choices(section: str, settings: Any) -> None:
    """Raise UserError where a field of a settings dataclass that is a Literal holds anything else."""
    for name, annotation in get_type_hints(type(settings)).items():
        if get_origin(annotation) is Literal:
            value, choices = getattr(settings, name), get_args(annotation)
            require(value in choices, f"{section}.{name} must be one of {', '.join(choices)}, not '{value}'")
