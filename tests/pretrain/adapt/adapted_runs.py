"""Runs that adapt a backbone, small enough for tests."""

from pathlib import Path
from typing import Any

from excb.checkpoint import run_checkpoint
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.recipe import Recipe
from tests.run_files import contents, tiny_recipe

CONV: dict[str, Any] = {"backbone": "conv4", "options": {"widths": [8, 8, 8, 16]}}
VIT: dict[str, Any] = {
    "backbone": "vit_tiny",
    "options": {"depth": 2, "embed_dim": 12, "num_heads": 2, "patch_size": 8, "img_size": 32},
}
SIZES = {"global_size": 32, "local_size": 16, "eval_resize": 32, "eval_crop": 32}
OVERRIDES = (
    "method.clusters=6",
    "method.hidden=16",
    "method.width=8",
    "method.kmeans_samples=24",
    "optim.epochs=4",
    "optim.batch=8",
    "adapt.warmup_epochs=1",
    "adapt.release_epochs=2",
    "adapt.patience=none",
    "monitor.k=3",
    "run.log_steps=1",
    "efficiency.workers=0",
    "efficiency.device=cpu",
)


def write_start(folder: Path, model: dict[str, Any]) -> Path:
    """A checkpoint of a network with random weights, to start from."""
    file = folder / "start.pt"
    run_checkpoint.write_run_checkpoint(contents(tiny_recipe(model, **SIZES), step=0), file)
    return file


def command(start: Path | str, images: Path, out: Path, *overrides: str) -> list[str]:
    """The command line of a small run."""
    return ["adapt", str(start), "--data", str(images), "--out", str(out), "--quiet", *OVERRIDES, *overrides]


def small_recipe(model: dict[str, Any], *overrides: str) -> Recipe:
    """The recipe of such a run, with its architecture and sizes."""
    recipe: Recipe = apply(find_recipe("adapt"), [*OVERRIDES, *overrides])
    return recipe.change(model=model, views=SIZES)
