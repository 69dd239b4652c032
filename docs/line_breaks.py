"""Where browsers may break long names in tables: after the marks inside a name, never inside a word."""

import re
from typing import Any

from sphinx.application import Sphinx

_TABLE = re.compile(r"<table.*?</table>", re.DOTALL)
_NAME = re.compile(r'(?<=<span class="pre">)[^<]+')
_MARK = re.compile(r"(?<=\w)(::|[_./=:,])(?=\w)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("html-page-context", _mark_breaks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _mark_breaks(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _tree: object) -> None:
    if body := context.get("body"):
        context["body"] = _TABLE.sub(lambda table: _NAME.sub(_with_breaks, table[0]), body)


def _with_breaks(name: re.Match[str]) -> str:
    return _MARK.sub(r"\1<wbr>", name[0])
