"""The options of learning from teachers, and their table in docs/distil.md: every one, with the recipe's value."""

import re
from dataclasses import fields

from excb.pretrain.distil.settings import DistilSettings
from excb.pretrain.recipes import RECIPES
from tests.clone import ROOT


def as_the_page_has_it(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def test_the_page_lists_every_option_with_the_recipes_value() -> None:
    text = (ROOT / "docs" / "distil.md").read_text(encoding="utf-8")
    rows = text.partition("\n## Options\n")[2].partition("\n## ")[0].splitlines()
    listed: dict[str, str] = {}
    for cells in (row.split(" | ") for row in rows if row.startswith("| `distil.")):
        names = re.findall(r"`distil\.(\w+)`", cells[0])
        listed |= zip(names, re.sub("`", "", cells[1]).split(", "), strict=True)
    settings = RECIPES["distil"]().distil
    assert listed == {field.name: as_the_page_has_it(getattr(settings, field.name)) for field in fields(DistilSettings)}
