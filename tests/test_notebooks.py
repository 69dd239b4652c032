"""The tutorials: kept without outputs, listed on the site, in plain words. The site's build runs them."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.clone import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
WORDS: dict[str, str] = tomllib.loads((ROOT / "docs" / "words.toml").read_text(encoding="utf-8"))


def cells(file: Path, kind: str) -> list[dict[str, Any]]:
    notebook = json.loads(file.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_the_site_lists_each() -> None:
    listed = re.findall(r"^notebooks/(.+)$", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == [file.stem for file in NOTEBOOKS]
    assert len(listed) == 6


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_outputs_are_not_kept(file: Path) -> None:
    assert [cell["id"] for cell in cells(file, "code") if cell["outputs"] or cell["execution_count"] is not None] == []


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_text_has_no_word_of_the_old_dialect_and_no_dead_link(file: Path) -> None:
    text = "\n".join("".join(cell["source"]) for cell in cells(file, "markdown"))
    assert [word for word in WORDS if re.search(rf"\b({word})\b", text)] == []
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    assert [link for link in links if not (file.parent / link).exists()] == []
