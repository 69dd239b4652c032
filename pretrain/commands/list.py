"""`excb-pretrain list`: the recipes, what they are for, and about how long they take."""

import argparse
import json

from excb.cli import Command

from ..recipes import RECIPES, about
from .options import add_output, reporter_of

HEADER = (
    *("recipe", "backbone", "input", "epochs", "batch", "clusters", "views"),
    *("images", "on CPU", "purpose"),
)
WHOLE = {1: "one view", 2: "two views"}  # without local ones
CORES = 4  # of the machine that hours are estimated for
CORE_TFLOPS = 0.025  # of one on small networks: about what the studies in docs/studies.md ran at
MOST_HOURS = 24 * 60  # of what anybody would wait for


def run(options: argparse.Namespace) -> int:
    """Print every recipe with the values that distinguish it."""
    rows = [_row(name) for name in RECIPES]
    reporter = reporter_of(options)
    if options.json:
        reporter.answer(json.dumps([dict(zip(HEADER, row, strict=True)) for row in rows], indent=2))
    else:
        reporter.table("Recipes (`excb-pretrain show RECIPE` for every value)", HEADER, rows)
        reporter.answer(
            f"Times are estimates for {CORES} CPU cores: of ImageNet (the paper's), 200,000 images (photos), 10,000 "
            "(rn18_small, photos_small, adapt, distil) or 2,640 (the others). Frozen teachers are not counted. "
            "`excb-pretrain plan RECIPE` measures on a GPU; `excb-pretrain choose --data DIR` has a recipe for your "
            "images and this machine."
        )
    return 0


def _row(name: str) -> list[str]:
    recipe, known = RECIPES[name](), about(name)
    views = recipe.views
    tflop = known.gflop / 1000 * known.typical * recipe.optim.epochs
    return [
        name,
        "that of init" if recipe.adapt.active else recipe.model.backbone,
        f"{views.global_size} px",
        str(recipe.optim.epochs),
        f"{recipe.optim.batch:,}",
        f"{recipe.method.clusters:,}" if recipe.method.clustering else "none",
        f"{views.global_views}+{views.local_views}" if views.local_views else WHOLE[views.global_views],
        known.images,
        _about(tflop / (CORES * CORE_TFLOPS) / 3600),
        known.purpose,
    ]


def _about(many: float) -> str:
    """Hours, as roughly as they are known."""
    if many > MOST_HOURS:
        return "months"
    if many >= 48:
        return f"{many / 24:.0f} days"
    return f"{many:.0f} h" if many >= 1.5 else f"{max(1, round(60 * many))} min"


LIST = Command(
    "list",
    "the recipes, what they are for, and about how long they take",
    add_output,
    run,
    group="start here",
    examples=(
        "list",
        "list --json",
    ),
)
