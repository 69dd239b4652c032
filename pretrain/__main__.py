"""`excb-pretrain`: list and show recipes, pretrain, try the quickstart."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from excb import __version__
from excb.cli import Parser
from excb.console import Reporter
from excb.errors import UserError, run

from . import overrides
from .recipes import RECIPES

DESCRIPTION = """\
Pretrain an image encoder without labels (ExCB).

  excb-pretrain quickstart                    try the whole road offline, on a dozen photographs
  excb-pretrain list                          the recipes
  excb-pretrain show RECIPE                   every value, where it comes from, what the paper used
  excb-pretrain RECIPE --data DIR             pretrain on the images below DIR
  excb-pretrain RECIPE --data DIR optim.epochs=50 run.seed=1

A run started again in its folder goes on where it was."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `excb-pretrain` and return its exit code."""
    return run("excb-pretrain", lambda: _main(argv))


def _parser() -> Parser:
    parser = Parser(prog="excb-pretrain", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe's name, or: list, show, quickstart")
    parser.add_argument("overrides", metavar="section.field=value", nargs="*", help="values other than the recipe's")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="images, at any depth; labels are used for figures only"
    )
    parser.add_argument("--list", type=Path, metavar="FILE", help="a file with one image path a line, below --data")
    parser.add_argument("--out", type=Path, metavar="RUN", help="the run folder (default: runs/RECIPE)")
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="GPUs to use; 0 for the CPU (default: one if there is one)"
    )
    parser.add_argument("--json", action="store_true", help="print the report, or the listing, as JSON")
    parser.add_argument("--quiet", action="store_true", help="no notes, no progress")
    parser.add_argument("--version", action="version", version=f"excb {__version__}")
    return parser


def _main(argv: Sequence[str] | None) -> int:
    chosen = _parser().parse_intermixed_args(argv)
    reporter = Reporter(quiet=chosen.quiet)
    if chosen.recipe == "list":
        return _list(reporter, as_json=chosen.json)
    if chosen.recipe == "show":
        if not chosen.overrides:
            raise UserError("show which recipe? (`excb-pretrain list` shows all)")
        name, *values = chosen.overrides
        from .show import show

        return show(overrides.find_recipe(name), values, reporter, as_json=chosen.json)
    recipe = overrides.apply(overrides.find_recipe(chosen.recipe), [*_gpu_overrides(chosen.gpus), *chosen.overrides])
    out = chosen.out or Path("runs") / chosen.recipe
    if chosen.recipe == "quickstart" and chosen.data is None and chosen.list is None:
        from .quickstart import quickstart

        code = quickstart(recipe, out, reporter, table=not chosen.json)
    else:
        from excb.images import read_list, scan_folder

        from .loop import train

        if chosen.data is None and chosen.list is None:
            raise UserError("name the folder of images with --data DIR, or a list of them with --list FILE")
        data = chosen.data / "train" if chosen.data is not None and (chosen.data / "train").is_dir() else chosen.data
        images = read_list(chosen.list, chosen.data) if chosen.list is not None else scan_folder(data)
        code = train(recipe, images, out, reporter, table=not chosen.json)
    if chosen.json and code == 0:
        reporter.answer((out / "report.json").read_text(encoding="utf-8").rstrip())
    return code


def _gpu_overrides(gpus: int | None) -> list[str]:
    """`--gpus` as overrides, before the user's own."""
    if gpus is None:
        return []
    if gpus < 0 or gpus > 1:
        raise UserError("this version trains in one process: --gpus takes 0 or 1")
    return ["efficiency.device=cuda" if gpus else "efficiency.device=cpu"]


def _list(reporter: Reporter, *, as_json: bool) -> int:
    """Print every recipe with the first sentence of its documentation."""
    rows = []
    for name in RECIPES:
        recipe = RECIPES[name]()
        kind = "multi-crop" if recipe.views.local_views else "two views"
        rows.append(
            [
                name,
                recipe.model.backbone,
                str(recipe.optim.epochs),
                f"{recipe.optim.batch:,}",
                f"{recipe.method.clusters:,}",
                kind,
            ]
        )
    header = ["recipe", "backbone", "epochs", "batch", "clusters", "views"]
    if as_json:
        reporter.answer(json.dumps([dict(zip(header, row, strict=True)) for row in rows], indent=2))
    else:
        reporter.table("Recipes (`excb-pretrain show RECIPE` for every value)", header, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
