"""A Sphinx extension: how the figures of a section were measured, from its records in `figures/`, at its end."""

import html
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # tests use the rest without the extra `docs`
    from sphinx.application import Sphinx


def add_records(app: "Sphinx", page: str, source: list[str]) -> None:
    """Write the records of a page, if it has any, below the sections that they name; `source` holds its text."""
    file = Path(app.srcdir) / "figures" / f"{page}.toml"
    if file.is_file():
        app.env.note_dependency(str(file))
        source[0] = with_records(source[0], tomllib.loads(file.read_text(encoding="utf-8"))["measurement"])


def with_records(text: str, records: list[dict[str, Any]]) -> str:
    """The Markdown of a page with a note at the end of each section that a record names."""
    lines, heading, fenced = list[str](), "", False
    for line in [*text.splitlines(), "# "]:
        fenced ^= line.startswith("```")
        if not fenced and re.match("#+ ", line):
            lines += [each for record in records if heading in record["sections"] for each in _note(record)]
            heading = line.lstrip("# ")
        lines.append(line)
    return "\n".join(lines[:-1]) + "\n"


def _note(record: dict[str, Any]) -> list[str]:
    rows = [
        ("Command", f"<code>{html.escape(record['command'])}</code>"),
        ("Hardware", html.escape(record["hardware"])),
        ("Date", record["date"]),
        ("Seeds", record["seeds"] or "no random numbers"),
        ("Intervals", html.escape(record["spread"])),
    ]
    listed = "".join(f"<li>{name}: {value}</li>" for name, value in rows)
    return ["", f"<details><summary>How this was measured</summary><ul>{listed}</ul></details>", ""]


def setup(app: "Sphinx") -> dict[str, bool]:
    """Register it with Sphinx."""
    app.connect("source-read", add_records)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
