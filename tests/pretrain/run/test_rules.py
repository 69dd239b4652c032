"""Rules of a recipe on a set: each is broken where it should be, and every command says the same of the same values."""

import json
from pathlib import Path
from typing import Any

import pytest

from excb.images.scanning import scan_folder
from excb.pretrain.__main__ import main
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.recipe import Recipe
from excb.pretrain.recipes import RECIPES, about
from excb.pretrain.run.rules import RULES, SetFacts, breaches, clusters_for, in_each, median_side
from excb.pretrain.study.studies import SIMCLR
from tests.clone import ROOT
from tests.pretrain.small_runs import write_images

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = [
    "optim.batch=4",
    "optim.epochs=2",
    "views.global_size=32",
    "views.local_size=16",
    "views.eval_resize=36",
    "views.eval_crop=32",
    "method.hidden=16",
    "method.width=8",
    "efficiency.workers=0",
]
WRONG = ["method.clusters=64", "optim.warmup_epochs=2"]


def broken(recipe: Recipe, images: int, side: int | None = None) -> dict[str, str]:
    return {breach.rule: breach.severity for breach in breaches(recipe, SetFacts(images, side))}


@pytest.mark.parametrize("name", RECIPES)
def test_no_recipe_breaks_a_rule_on_the_images_that_it_is_for(name: str) -> None:
    recipe = RECIPES[name]()
    assert broken(recipe, about(name).typical, recipe.views.global_size) == {}


def test_what_cannot_work_on_a_hundred_small_images() -> None:
    recipe = apply(find_recipe("rn50_100ep"), ["optim.epochs=5", "optim.batch=32"])
    assert broken(recipe, 100, 32) == {
        "clusters": "error",
        "warm-up": "error",
        "teacher": "warning",
        "views": "warning",
    }


@pytest.mark.parametrize(
    ("recipe", "values", "images", "expected"),
    [
        ("photos_small", ["method.clusters=128"], 1_500, {}),
        ("photos_small", ["method.clusters=129"], 1_280, {"clusters": "warning"}),
        ("photos_small", ["method.clusters=1281"], 1_280, {"clusters": "error"}),
        ("photos_small", ["method.clusters=1281", *SIMCLR], 1_280, {}),
        ("photos_small", ["optim.warmup_epochs=50"], 10_000, {}),
        ("photos_small", ["optim.warmup_epochs=51"], 10_000, {"warm-up": "warning"}),
        ("photos_small", ["optim.warmup_epochs=100"], 10_000, {"warm-up": "error"}),
        ("photos_small", ["optim.frozen_centroid_epochs=100"], 10_000, {"fixed centroids": "error"}),
        ("photos_small", ["optim.frozen_centroid_epochs=99"], 10_000, {}),
        ("adapt", ["optim.epochs=2"], 10_000, {}),
        ("adapt", ["optim.epochs=1"], 50_000, {"release": "warning"}),
        ("adapt", ["optim.epochs=1", "adapt.warmup_epochs=1"], 50_000, {"release": "error"}),
        ("photos_small", ["method.teacher_momentum=0.9999"], 10_000, {"teacher": "warning"}),
        (
            "photos_small",
            ["method.teacher_momentum=1", "method.teacher_momentum_end=1"],
            10_000,
            {"teacher": "warning"},
        ),
    ],
)
def test_thresholds(recipe: str, values: list[str], images: int, expected: dict[str, str]) -> None:
    assert broken(apply(find_recipe(recipe), values), images) == expected


@pytest.mark.parametrize(("images", "clusters"), [(1, 4), (80, 4), (1_500, 64), (2_640, 128), (50_000, 2_048)])
def test_clusters_are_a_power_of_two_of_some_twenty_images(images: int, clusters: int) -> None:
    assert clusters_for(images) == clusters


def test_clusters_of_imagenet_are_the_papers() -> None:
    assert clusters_for(1_281_167) == 65_536


def test_views_are_compared_with_the_images_if_these_can_be_read(tmp_path: Path) -> None:
    images = scan_folder(write_images(tmp_path / "images", each=2))
    side = median_side(images)
    assert side == 36
    recipe = find_recipe("photos_small").change(optim={"batch": 2})
    assert "views" not in broken(recipe, 10_000, side)
    assert broken(recipe.change(views={"global_size": 73}), 10_000, side) == {"views": "warning"}
    assert broken(recipe.change(views={"global_size": 73}), 10_000, None) == {}


def test_sizes_are_read_from_headers(tmp_path: Path) -> None:
    """A photograph of a phone takes a third of a second to decode, and a run begins with 64 of them."""
    images = scan_folder(write_images(tmp_path / "images", each=2))
    for index in range(len(images)):
        file = images.file(index)
        file.write_bytes(file.read_bytes()[:-20])  # nobody can decode these
    assert median_side(images) == 36


def test_every_rule_states_its_evidence() -> None:
    assert all(rule.evidence for rule in RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_every_command_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_images(tmp_path / "images", each=9)
    images = scan_folder(data)
    recipe = apply(find_recipe("conv4_tiny"), [*TINY, *WRONG])
    expected = [*breaches(recipe, SetFacts(len(images), 36))]
    assert [breach.rule for breach in expected] == ["clusters", "warm-up", "teacher"]
    words = ["conv4_tiny", "--data", str(data), "--gpus", "0", *TINY, *WRONG]

    def told(*command: str, code: int = 0) -> tuple[Any, str]:
        assert main([*command, *words, "--json"]) == code
        out, err = capsys.readouterr()
        return json.loads(out), err

    planned = [breach.to_dict() for breach in expected]
    assert told("plan")[0]["rules"] == planned
    assert told("train", "--dry-run", "--out", str(tmp_path / "run"))[0]["rules"] == planned
    checks = told("doctor", code=1)[0]["checks"]
    found = [(each["name"], each["verdict"], each["found"], each["fix"]) for each in checks if "rule: " in each["name"]]
    assert found == [(f"rule: {each.rule}", each.severity, each.found, each.fix) for each in expected]
    assert main(["train", *words, "--out", str(tmp_path / "run")]) == 0
    err = capsys.readouterr().err
    assert all(f"warning: {breach.line}" in err for breach in expected)
    assert main(["plan", *words]) == 0
    out = capsys.readouterr().out
    assert all(f"{breach.severity}: {breach.line}" in out for breach in expected)


def test_the_docs_have_every_rule() -> None:
    page = (ROOT / "docs" / "is-my-run-normal.md").read_text(encoding="utf-8")
    section = page.partition("## Values that do not suit each other")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")]
    assert rows[2:] == [rule.name for rule in RULES]


@pytest.mark.parametrize(
    ("images", "said"), [(12, "3 images"), (3, "1 image"), (2640, "21 images"), (50_000, "24 images")]
)
def test_images_in_each_cluster_are_those_of_the_clusters_proposed(images: int, said: str) -> None:
    """The fewest clusters are four, which hold fewer of a small set than twenty images."""
    assert in_each(images, clusters_for(images)) == said
