"""TOML of any origin read within bounds, and plain values as TOML, which Python does not write."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from excb.errors import UserError
from excb.files.foreign import parsing, read_text

LARGEST = 2**22  # bytes of a file
MOST_PARTS = 64  # of a dotted key: the time that Python's reader takes grows with their square
_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:\.[ \t]*+{_PART}){{{MOST_PARTS}}}")


def read_toml(file: Path) -> dict[str, Any]:
    """The tables of a file.

    Raises:
        OSError: it cannot be read, is special or larger than `LARGEST`.
        ValueError: it is not TOML, is nested too deeply, or has a key of more than `MOST_PARTS` parts.
    """
    return parse_toml(read_text(file, most=LARGEST))


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text. Raises ValueError as `read_toml`."""
    for line in text.splitlines():
        if line.count(".") >= MOST_PARTS and (long := _LONG_KEY.search(line)):
            raise ValueError(f"a key of more than {MOST_PARTS} parts, {long[0][:40]}")
    with parsing():
        return tomllib.loads(text)


def toml_table(name: str, values: dict[str, Any]) -> str:
    """A table with its header. A table of tables becomes one line for each: `key.inner = { ... }`.

    Raises:
        UserError: TOML cannot hold a value, such as None.
    """
    lines = [f"[{_key(name)}]"]
    for key, value in values.items():
        if isinstance(value, dict) and value and all(isinstance(item, dict) for item in value.values()):
            lines += [f"{_key(key)}.{_key(inner)} = {_inline(item)}" for inner, item in value.items()]
        else:
            lines.append(f"{_key(key)} = {_inline(value)}")
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else _inline(key)


def _inline(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return int.__repr__(value)
        case float():
            return float.__repr__(value)  # NumPy's own repr is not a number in TOML
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one escape JSON does not need
        case list() | tuple():
            return f"[{', '.join(map(_inline, value))}]"
        case dict():
            return "{ " + ", ".join(f"{_key(key)} = {_inline(item)}" for key, item in value.items()) + " }"
        case _:
            raise UserError(f"TOML cannot hold {ascii(value)[:80]}")
