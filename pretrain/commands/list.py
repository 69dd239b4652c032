"""`excb-pretrain list`: the recipes."""

import argparse
import json

from excb.cli import Command

from ..recipes import RECIPES
from .options import add_output, reporter_of

HEADER = ("recipe", "backbone", "epochs", "batch", "clusters", "views")


def run(options: argparse.Namespace) -> int:
    """Print every recipe with the values that distinguish it."""
    rows = [_row(name) for name in RECIPES]
    reporter = reporter_of(options)
    if options.json:
        reporter.answer(json.dumps([dict(zip(HEADER, row, strict=True)) for row in rows], indent=2))
    else:
        reporter.table("Recipes (`excb-pretrain show RECIPE` for every value)", HEADER, rows)
    return 0


def _row(name: str) -> list[str]:
    recipe = RECIPES[name]()
    return [
        name,
        recipe.model.backbone,
        str(recipe.optim.epochs),
        f"{recipe.optim.batch:,}",
        f"{recipe.method.clusters:,}",
        "multi-crop" if recipe.views.local_views else "two views",
    ]


LIST = Command("list", "the recipes", add_output, run)
