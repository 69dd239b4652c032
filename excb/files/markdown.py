"""Text and values from files as Markdown that shows them and does nothing else."""

import html
import re
from collections.abc import Sequence
from typing import Any


def line(text: str) -> str:
    """Text on one line, without control characters and direction marks."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def cell(value: Any) -> str:
    """A value as people read it, in a sentence or a table's cell, without markup or HTML. Numbers keep every digit."""
    return re.sub(r"([\\`*|\[\]~])", r"\\\1", html.escape(line(_text(value)), quote=False))


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def markdown_table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    """A table of values."""
    lines = [[cell(each) for each in row] for row in [head, *rows]]
    lines.insert(1, ["---"] * len(head))
    return "\n".join("| " + " | ".join(each) + " |" for each in lines)


def bullets(values: Sequence[tuple[str, Any]]) -> str:
    """A list of named values."""
    return "\n".join(f"- {cell(name)}: {cell(value)}" for name, value in values)
