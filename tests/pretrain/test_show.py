"""Tests of `excb-pretrain show`: every value is documented, and where it comes from is shown correctly."""

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

from excb.console import Reporter
from excb.errors import UserError
from excb.pretrain.overrides import ADOPTED, field_names, find_recipe
from excb.pretrain.recipe import Recipe
from excb.pretrain.recipes import RECIPES
from excb.pretrain.show import print_recipe, recipe_rows
from tests.clone import ROOT

SHOW_AND_TELL_OF_TORCH = """
import sys
from excb.pretrain.__main__ import main
status = main(sys.argv[1:])
print("torch" in sys.modules, "rn50_400ep" in sys.argv, file=sys.stderr)
sys.exit(status)
"""


def origins(name: str, *values: str) -> dict[str, str]:
    return {row["field"]: row["from"] for row in recipe_rows(find_recipe(name), values)}


@pytest.fixture(autouse=True)
def in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours asked for by the machine that runs the tests would change the text."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def test_every_field_says_what_it_is_and_where_its_default_comes_from() -> None:
    recipe = RECIPES["quickstart"]()
    sections = [value for value in vars(recipe).values() if dataclasses.is_dataclass(value)]
    fields = [(type(section).__name__, field) for section in sections for field in dataclasses.fields(section)]
    assert len(fields) == len(field_names(recipe)) - 1  # all but init
    for section, field in fields:
        assert field.metadata["doc"].strip(), f"{section}.{field.name} has no doc"
        assert field.metadata["source"].strip(), f"{section}.{field.name} has no source"
        assert "paper" in field.metadata, f"{section}.{field.name} does not say what the paper used"
        if field.metadata["source"] == "paper":
            assert field.metadata["paper"], f"{section}.{field.name}: the paper is its source, but with what value?"


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_rows_are_the_recipes_fields_with_their_values(name: str) -> None:
    recipe = RECIPES[name]()
    rows = recipe_rows(recipe, [])
    assert [row["field"] for row in rows] == field_names(recipe)
    plain = recipe.all_values()
    for row in json.loads(json.dumps(rows)):
        section, _, field = row["field"].rpartition(".")
        assert row["value"] == (plain[section][field] if section else plain[field])
        assert set(row) == {"field", "value", "from", "where", "speed_only", "paper", "doc"}
        assert row["doc"]


@pytest.mark.parametrize(
    ("name", "field", "origin"),
    [
        ("rn50_100ep", "init", "default"),
        ("rn50_100ep", "optim.epochs", "recipe rn50_100ep"),
        ("rn50_400ep", "optim.epochs", "default (paper)"),
        ("rn50_100ep", "method.clusters", "default (paper)"),
        ("rn50_100ep", "views.blur_local", "default (DINO)"),
        ("rn50_100ep", "views.hue", "default (BYOL)"),
        ("rn50_100ep", "run.keep", "default (ours)"),
        ("rn50_100ep_2x224", "views.local_views", "recipe rn50_100ep_2x224"),
        ("rn50_100ep_official", "optim.epochs", "recipe rn50_100ep"),
        ("rn50_100ep_official", "views.blur", "official (authors' code)"),
        ("rn50_100ep_official", "views.scale_end", "official (authors' code)"),
        ("rn50_100ep_official", "method.centroid_init", "official (authors' code)"),
        ("rn50_100ep_official", "method.hidden", "default (paper)"),
        ("rn50_100ep_2x224_official", "views.global_scale", "recipe rn50_100ep_2x224"),
        ("rn50_100ep_2x224_official", "optim.lr_floor", "official (authors' code)"),
        ("vits16_100ep", "optim.lr_floor", "recipe vits16_100ep"),
        ("vits16_100ep", "optim.clip", "recipe vits16_100ep"),
        ("vits16_100ep_official", "optim.lr_floor", "official (authors' code)"),
        ("vits16_100ep_official", "model.drop_path", "recipe vits16_100ep"),
        # The authors' code goes back to what happens to be the default: it is still their choice.
        ("vits16_100ep_official", "optim.clip", "official (authors' code)"),
        ("vits16_100ep_official", "optim.centroid_decay", "official (authors' code)"),
        ("vits16_100ep_official", "optim.frozen_centroid_epochs", "official (authors' code)"),
        ("rn18_small", "model.options", "recipe rn18_small"),
        ("rn50_100ep", "model.options", "default (ours)"),
    ],
)
def test_origin_of_a_value(name: str, field: str, origin: str) -> None:
    assert origins(name)[field] == origin


def test_values_of_the_command_line_differ_from_the_recipes() -> None:
    before = origins("vits16_100ep_official")
    after = origins(
        "vits16_100ep_official", "optim.epochs=7", "method.clamp=no", "optim.clip=3", "views.hue=0.2", "init=runs/x"
    )
    changed = {"optim.epochs", "method.clamp", "optim.clip", "views.hue", "init"}
    assert {field for field, origin in after.items() if origin == "command line"} == changed
    adopted = {field for field, origin in after.items() if origin == "init"}
    assert adopted == set(ADOPTED)
    assert {field for field in before if before[field] != after[field]} == changed | adopted


def test_every_origin_is_one_of_the_four() -> None:
    for name in RECIPES:
        own = f"recipe {name.removesuffix('_official')}"
        for field, origin in origins(name).items():
            official = origin == "official (authors' code)" and name.endswith("_official")
            assert official or origin in (own, "default") or origin.startswith("default ("), (name, field, origin)


def test_what_is_not_a_default_differs_from_it() -> None:
    usual = {row["field"]: row["value"] for row in recipe_rows(Recipe(name="quickstart"), [])}
    for name in RECIPES:
        for row in recipe_rows(RECIPES[name](), []):
            if row["from"].startswith("default"):
                assert row["value"] == usual[row["field"]]
            elif row["from"].startswith("recipe"):
                assert row["value"] != usual[row["field"]]


def test_json_is_what_describe_tells(capsys: pytest.CaptureFixture[str]) -> None:
    values = ["optim.epochs=3", 'model.options={"channels": [8, 16, 24, 32]}', "run.save_steps=5"]
    assert print_recipe(find_recipe("quickstart"), values, Reporter(), as_json=True) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows == json.loads(json.dumps(recipe_rows(find_recipe("quickstart"), values)))
    shown = {row["field"]: row["value"] for row in rows}
    assert (shown["optim.epochs"], shown["run.save_steps"]) == (3, 5)
    assert shown["model.options"] == {"channels": [8, 16, 24, 32]}
    assert shown["views.global_scale"] == [0.2, 1.0]


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_exactly_the_efficiency_fields_are_marked_as_changing_speed_only(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    efficiency = {f"efficiency.{field.name}" for field in dataclasses.fields(RECIPES[name]().efficiency)}
    assert "efficiency.fused" in efficiency
    assert print_recipe(find_recipe(name), [], Reporter(), as_json=True) == 0
    assert {row["field"] for row in json.loads(capsys.readouterr().out) if row["speed_only"]} == efficiency
    assert print_recipe(find_recipe(name), [], Reporter(), as_json=False) == 0
    header, *lines = capsys.readouterr().out.splitlines()[4:]
    column = header.index("changes")
    assert {line.split()[0] for line in lines if line[column:].startswith("speed only")} == efficiency


def test_text_holds_every_field_with_value_origin_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_recipe(find_recipe("vits16_100ep_official"), ["optim.epochs=7"], Reporter(), as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines if line.split()}

    def cells(field: str) -> list[str]:
        return [cell.strip() for cell in rows[field].split("  ") if cell.strip()]

    assert cells("optim.epochs")[:3] == ["optim.epochs", "7", "command line"]
    assert cells("optim.base_lr")[:3] == ["optim.base_lr", "0.0005", "recipe vits16_100ep"]
    assert cells("optim.clip")[:3] == ["optim.clip", "None", "official (authors' code)"]
    assert cells("method.clamp")[:3] == ["method.clamp", "true", "official (authors' code)"]
    assert cells("views.global_scale")[:2] == ["views.global_scale", "0.26,1"]
    assert cells("model.options")[:2] == ["model.options", "{}"]
    assert cells("optim.optimizer") == [
        "optim.optimizer",
        "adamw",
        "recipe vits16_100ep",
        "DINO: --optimizer; authors' code: configs/vit_s16_ep800.yaml:1",
        "SGD; ViT: AdamW (DINO)",
        "optimizer",
    ]
    assert set(field_names(find_recipe("vits16_100ep_official"))) <= set(rows)


def test_wrong_values_are_refused_as_in_a_run() -> None:
    with pytest.raises(UserError, match=r"did you mean 'optim\.epochs'"):
        print_recipe(find_recipe("quickstart"), ["optim.epoch=3"], Reporter(), as_json=True)


@pytest.mark.parametrize("arguments", [(), ("--json",)], ids=["text", "json"])
def test_show_needs_no_torch(arguments: tuple[str, ...]) -> None:
    # A new interpreter: what it imports is tested.
    command: list[Any] = [sys.executable, "-c", SHOW_AND_TELL_OF_TORCH, "show", "rn50_400ep", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert (result.returncode, result.stderr.strip()) == (0, "False True")
    assert "optim.epochs" in result.stdout
