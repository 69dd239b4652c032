"""Tests of where recipes' values are from: no value is credited to a text that lacks it."""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import pytest

from excb.pretrain.overrides import field_names
from excb.pretrain.provenance import provenance
from excb.pretrain.recipe import Recipe
from excb.pretrain.recipes import RECIPES
from excb.pretrain.show import recipe_rows
from tests.clone import ROOT

PAPER = ROOT.parent / "shared" / "paper" / "excb_eccv2024.tex"
CODE = "EXCB_AUTHORS_CHECKOUT"  # names the folder of a checkout of github.com/ManiadisG/ExCB at 7750bd5
WORDS = {2: "two", 6: "six"}
# What is said of the weight decay of the centroids, as multiples of the others' 1e-4.
DECAYS = {"optim.centroid_decay": "$10^{-3}$", "optim.centroid_decay_end": "$10^{-4}$"}


def defaults() -> dict[str, tuple[Any, Any]]:
    """Default and metadata of every field."""
    recipe, fields = Recipe(name="defaults"), {}
    for name in field_names(recipe)[1:]:
        section, field = name.split(".")
        values = getattr(recipe, section)
        metadata = next(each for each in dataclasses.fields(values) if each.name == field).metadata
        fields[name] = getattr(values, field), metadata
    return fields


def spellings(name: str, value: Any) -> list[str]:
    """Ways in which a text may write a value; none of one that is not a number."""
    if name in DECAYS:
        return [DECAYS[name]]
    if isinstance(value, bool | str) or value is None:
        return []
    if isinstance(value, tuple):
        return ["[" + ", ".join(f"{each:g}." if each == int(each) else f"{each:g}" for each in value) + "]"]
    forms = [f"{value:g}", f"{value:,}", f"{value:.0f}"] if value >= 1 else [f"{value:g}", f"{value}"]
    return [*forms, *([WORDS[value]] if value in WORDS else []), *(["$10^{-4}$"] if value == 1e-4 else [])]


def test_every_record_is_of_a_field_and_says_where() -> None:
    for name, places in provenance().items():
        assert name in field_names(Recipe(name="defaults"))
        assert bool(places.paper) == bool(places.quote), name
        assert places.paper or places.code or places.vit, name


def test_values_of_the_paper_have_its_words_and_these_have_the_value() -> None:
    for name, (value, metadata) in defaults().items():
        places = provenance().get(name)
        credited = metadata["source"] == "paper"
        assert credited == (places is not None and bool(places.paper)), name
        if places is None:
            assert metadata["source"] != "authors' code", name
            continue
        assert metadata["source"] != "authors' code" or places.code, name
        assert not metadata["paper"].startswith("not said") or not credited, name
        if credited and (forms := spellings(name, value)):
            numbers = re.sub(r"(?<=\d)x(?=\d)", " x ", places.quote)
            assert any(re.search(rf"(?<![\d.,]){re.escape(form)}(?!\d)", numbers) for form in forms), (
                name,
                places.quote,
            )


def test_the_papers_words_are_in_its_text() -> None:
    if not PAPER.exists():
        pytest.skip("the paper's source is not beside this checkout")
    text = " ".join(PAPER.read_text(encoding="utf-8").split())
    for name, places in provenance().items():
        assert places.quote in text, name


def test_lines_of_the_authors_code_have_the_field() -> None:
    if CODE not in os.environ:
        pytest.skip(f"{CODE} names no checkout of github.com/ManiadisG/ExCB")
    for name, places in provenance().items():
        named = re.findall(r"[\w/]+\.(?:py|yaml):\d+", f"{places.code} {places.vit}")
        for file, line in (place.split(":") for place in named):
            lines = (Path(os.environ[CODE]) / file).read_text(encoding="utf-8").splitlines()
            assert lines[int(line) - 1].strip(), (name, file, line)


@pytest.mark.parametrize("name", ["rn50_400ep", "vits16_800ep", "rn50_400ep_official", "vits16_800ep_official"])
def test_every_value_of_the_authors_runs_has_its_place(name: str) -> None:
    for row in recipe_rows(RECIPES[name](), []):
        if row["from"] in ("default (paper)", "default (authors' code)", "official (authors' code)"):
            assert row["where"], row
        if row["from"] == "recipe vits16_800ep" and row["field"].split(".")[0] == "optim":
            assert row["where"], row
        if row["field"] in ("views.eval_resize", "views.eval_crop", "method.head"):
            assert row["where"].startswith("authors' code"), row
        if row["field"] in ("method.centroid_init", "method.predictor_input_norm"):
            assert row["paper"].startswith("not said"), row
