"""Tests of where recipes' values are from: no value is credited to a text that lacks it."""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import pytest

from excb.pretrain.overrides import field_names
from excb.pretrain.provenance import OF_RECIPES, OURS, provenance
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


def own_recipes() -> list[str]:
    """Recipes that are neither the paper's nor the authors' code's."""
    return [name for name in RECIPES if not name.startswith(("rn50", "vits16"))]


def anchors(page: Path) -> list[str]:
    """The anchors of a page's sections, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


def test_every_record_is_of_a_field_or_a_recipe_and_says_where() -> None:
    names = [*field_names(Recipe(name="defaults")), *(f"{OF_RECIPES}.{name}" for name in own_recipes())]
    for name, places in provenance().items():
        assert name in names
        assert bool(places.paper) == bool(places.quote), name
        assert not (places.study and places.unmeasured), name
        assert places.paper or places.code or places.vit or places.study or places.unmeasured, name


def test_studies_that_are_named_are_sections_of_the_docs() -> None:
    named = {name: places.study.split("#") for name, places in provenance().items() if places.study}
    assert len(named) > 20
    for name, (page, section) in named.items():
        assert section in anchors(ROOT / "docs" / page), name


def test_a_value_of_ours_that_changes_what_is_learned_has_its_study_or_a_reason() -> None:
    for name, (_, metadata) in defaults().items():
        if metadata["source"].startswith(OURS) and name.split(".")[0] in ("method", "adapt", "distil"):
            assert provenance()[name].where(metadata["source"]), name
    assert all(provenance()[f"{OF_RECIPES}.{name}"].where(OURS) for name in own_recipes())


def test_show_names_the_study_of_a_default_and_of_a_recipes_own_value() -> None:
    rows = {row["field"]: row for row in recipe_rows(RECIPES["photos_small"](), [])}
    page, section = "docs/claims.md", "which-method-for-few-images-contrast-helps-clusters-alone-do-not-lead"
    assert rows["optim.epochs"]["where"] == "docs/claims.md#longer-runs-in-the-same-time"
    assert rows["method.regression"]["where"] == f"{page}#{section}"
    assert rows["adapt.lora_rank"]["where"] == "not measured: no run compared values"
    changed = {row["field"]: row for row in recipe_rows(RECIPES["photos_small"](), ["optim.epochs=3"])}
    assert changed["optim.epochs"]["where"] == ""


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
