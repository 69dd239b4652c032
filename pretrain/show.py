"""`excb-pretrain show`: every value of a recipe, where it comes from, what it does and what the paper used."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from excb.console import Reporter, plural

from .overrides import apply, field_names
from .provenance import OF_RECIPES, OURS, provenance
from .recipe import Recipe
from .recipes import RECIPES

KEYS = ("field", "value", "from", "where", "speed_only", "paper", "doc")
ADOPTED_VALUE = "the checkpoint's"  # of a field that `init` decides
SPEED = "speed only"  # marks what changes speed or memory, never the result's definition


def print_recipe(recipe: Recipe, values: Sequence[str], reporter: Reporter, *, as_json: bool) -> int:
    """Print a recipe with overrides applied."""
    rows = recipe_rows(recipe, values)
    if as_json:
        reporter.answer(json.dumps(rows, indent=2))
        return 0
    reporter.answer(
        f"{recipe.name}: {plural(len(rows), 'value')}. Sections efficiency ({SPEED}), monitor and run do not "
        "change what is\n"
        "learned, except for run.seed. A default names its source.\n"
    )
    table = [
        [
            each["field"],
            value_text(each["value"]),
            each["from"],
            each["where"],
            SPEED if each["speed_only"] else "",
            each["paper"],
            each["doc"],
        ]
        for each in rows
    ]
    reporter.table(recipe.name, ["field", "value", "from", "where", "changes", "paper", "what it is"], table)
    return 0


def recipe_rows(recipe: Recipe, values: Sequence[str]) -> list[dict[str, Any]]:
    """One row per field: value, origin and its place, whether it affects speed only, the paper's value, what it is."""
    final, default = apply(recipe, values), Recipe(name="")
    base = recipe.name.removesuffix("_official")
    doc = "a loadable backbone or full checkpoint to start from"
    rows = [("init", final.init, "command line" if final.init else "default", "", False, "random weights", doc)]
    places = provenance()
    for name in field_names(recipe)[1:]:
        section, field = name.split(".")
        value, ours, usual = (getattr(getattr(r, section), field) for r in (final, recipe, default))
        metadata = next(f for f in dataclasses.fields(getattr(recipe, section)) if f.name == field).metadata
        if name in final.adopts:
            value, origin, source = ADOPTED_VALUE, "init", ""
        elif value != ours:
            origin, source = "command line", ""
        elif base != recipe.name and ours != getattr(getattr(RECIPES[base](), section), field):
            origin, source = "official (authors' code)", "authors' code"  # also where it equals the default again
        elif ours == usual:
            origin, source = f"default ({metadata['source']})", metadata["source"]
        else:
            origin, source = f"recipe {base}", _source_of_recipe(base)
        place = places.get(f"{OF_RECIPES}.{base}" if origin == f"recipe {base}" and source == OURS else name)
        where = "" if place is None else place.where(source)
        rows.append((name, value, origin, where, section == "efficiency", metadata["paper"], metadata["doc"]))
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def _source_of_recipe(name: str) -> str:
    """The source of the values in which a recipe differs from the defaults, for `Provenance.where`."""
    return "vit" if name.startswith("vits16") else "paper" if name.startswith("rn50") else OURS


def value_text(value: Any) -> str:
    """A value of a recipe as it is written on the command line."""
    if isinstance(value, tuple):
        return ",".join(item if isinstance(item, str) else f"{item:g}" for item in value) or "none"
    if isinstance(value, dict):
        return json.dumps(value) if value else "{}"
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
