"""What a row of the catalogue may say, wherever it comes from."""

import re
from collections.abc import Callable
from typing import Any

from excb.errors import UserError, nearest_name
from excb.remote.home import folder_of

MOST = 1e15  # of any number: TOML sets no bounds, and whoever shows one does not expect a thousand digits
Rule = Callable[[Any], bool]


def check(values: dict[str, Any]) -> None:
    """Refuse what is no row: fields missing or unknown, values of another kind, names that could lead elsewhere.

    Raises:
        UserError: says which field, and what it must be.
    """
    name = values.get("name")
    if not isinstance(name, str):
        raise UserError("a checkpoint must have a name")
    if missing := [field for field in ("method", "architecture", "source") if field not in values]:
        raise UserError(f"checkpoint {name!r} lacks {', '.join(missing)}")
    for field, value in values.items():
        if field not in FIELDS:
            raise UserError(f"checkpoint {name!r} has no field {field!r}{nearest_name(str(field), FIELDS)}")
        holds, expected = FIELDS[field]
        if not holds(value):
            raise UserError(f"checkpoint {name!r}: {field} must be {expected}, not {ascii(value)[:80]}")
    for called in (name, *values.get("aliases", ())):
        folder_of(called)  # refuses names that could lead elsewhere
    if values.get("redistributable") and "licence" not in values:
        raise UserError(f"checkpoint {name!r}: redistributable needs the licence that allows it")


def _is_line(value: Any) -> bool:
    """A line that a terminal shows as it is; it may be empty."""
    return isinstance(value, str) and value.isprintable()


def _is_text(value: Any) -> bool:
    return _is_line(value) and value.strip() != ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -MOST < value < MOST


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < MOST


def _list_of(rule: Rule, length: int | None = None) -> Rule:
    return lambda value: (
        isinstance(value, list | tuple) and all(map(rule, value)) and (length is None or len(value) == length)
    )


def _table_of(rule: Rule) -> Rule:
    return lambda value: isinstance(value, dict) and all(map(_is_text, value)) and all(map(rule, value.values()))


def _table_with(rules: dict[str, Rule], required: frozenset[str] = frozenset()) -> Rule:
    return lambda value: (
        isinstance(value, dict)
        and required <= value.keys() <= rules.keys()
        and all(rules[name](item) for name, item in value.items())
    )


def _one_of(*choices: str) -> Rule:
    return lambda value: isinstance(value, str) and value in choices


def _written_as(pattern: str) -> Rule:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None


_ARCHITECTURE = _table_with({"name": _is_text, "options": _table_of(lambda _: True)}, required=frozenset({"name"}))
_PREPROCESSING = _table_with(
    {
        "resize": _is_count,
        "crop": _is_count,
        "mean": _list_of(_is_number, 3),
        "std": _list_of(lambda value: _is_number(value) and value > 0, 3),
        "interpolation": _one_of("bilinear", "bicubic"),
    }
)
_LOCATION = _written_as(r"https?://[!-~]+|hf-hub:[\w.-]+/[\w.-]+(@[\w./-]+)?")

_TEXT = (_is_text, "one line of text")
_TEXTS = (_list_of(_is_text), "a list of lines of text")
_COUNT = (_is_count, "a whole number above 0")
# Every field, its rule, and the rule in words.
FIELDS: dict[str, tuple[Rule, str]] = {
    "name": _TEXT,
    "method": _TEXT,
    "architecture": (_ARCHITECTURE, 'a table as { name = "resnet50" }, with or without options'),
    "preprocessing": (_PREPROCESSING, "a table of resize, crop, mean, std and interpolation, or of some of them"),
    "source": _TEXT,
    "aliases": _TEXTS,
    "locations": (_list_of(_LOCATION), 'a list of "hf-hub:user/repo@revision" or "https://..."'),
    "digest": (_written_as("sha256:[0-9a-f]{8,64}|md5:[0-9a-f]{8,32}"), '"sha256:" or "md5:" and 8 digits or more'),
    "layout": _TEXT,
    "network": (_one_of("teacher", "student"), '"teacher" or "student"'),
    "epochs": _COUNT,
    "batch": _COUNT,
    "crops": _TEXT,
    "licence": _TEXT,
    "redistributable": (lambda value: isinstance(value, bool), "true or false"),
    "figures": (_table_of(_table_of(_is_number)), 'tables as "ExCB, Table 1" = { linear_top1 = 76.5 }'),
    "globals": _TEXTS,
    "note": (_is_line, "one line of text"),
}
