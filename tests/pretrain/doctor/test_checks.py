"""The doctor's table of checks: which are made, in what order, and which are left out after an error."""

from collections.abc import Callable
from pathlib import Path

import pytest

from excb.console import Reporter
from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder
from excb.pretrain.doctor import checks
from excb.pretrain.doctor.checks import Check, CheckedMachine, examine
from excb.pretrain.doctor.finding import Finding, Verdict
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.recipe import Recipe
from excb.pretrain.run.remote_mirror import RunLocation
from tests.pretrain.small_runs import OVERRIDES, write_images


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    return scan_folder(write_images(tmp_path / "images", classes=2, each=3))


def subject(images: ImageSet, recipe: Recipe | None, gpus: int | None = None) -> CheckedMachine:
    return CheckedMachine(images, recipe, RunLocation(images.root / "run"), Reporter(quiet=True), gpus=gpus)


def finds(name: str, verdict: Verdict = "ok") -> Callable[[CheckedMachine], list[Finding]]:
    return lambda _: [Finding(name, verdict, "")]


def test_checks_that_need_a_recipe_or_follow_an_error_are_left_out(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = (
        Check(finds("versions", "warning")),
        Check(finds("GPU 0", "error")),
        Check(finds("disk"), needs_recipe=True, not_after=("versions",)),
        Check(finds("step"), not_after=("GPU", "bf16")),
        Check(finds("pixels")),
    )
    monkeypatch.setattr(checks, "CHECKS", table)
    without = [finding.name for finding in examine(subject(images, None))]
    assert without == ["versions", "GPU 0", "pixels"]
    recipe = apply(find_recipe("quickstart"), OVERRIDES)
    assert [finding.name for finding in examine(subject(images, recipe))] == ["versions", "GPU 0", "disk", "pixels"]


def test_processes_share_workers_that_the_recipe_leaves_open(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "worker_count", lambda requested: 12 if requested < 0 else requested)
    recipe = find_recipe("quickstart")
    automatic, fixed = (recipe.change(efficiency={"workers": workers}) for workers in (-1, 5))
    assert [subject(images, automatic, gpus).workers for gpus in (None, 0, 4, 99)] == [12, 12, 3, 1]
    assert subject(images, fixed, 4).workers == 5


def test_without_a_recipe_the_usual_values_are_judged(images: ImageSet) -> None:
    bare = subject(images, None)
    assert (bare.named_recipe, bare.recipe.efficiency) == (None, Recipe(name="").efficiency)
