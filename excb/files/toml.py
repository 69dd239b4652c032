"""Plain values as TOML. Python reads it (`tomllib`) but does not write it."""

import json
import re
from typing import Any

from excb.errors import UserError


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
