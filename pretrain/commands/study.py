"""`excb-pretrain study`: small runs side by side."""

import argparse
import json
from pathlib import Path

from excb.cli import Command, Parser, local_path
from excb.console import Reporter
from excb.errors import UserError

from .. import overrides
from ..study.studies import BASE, STUDIES, find_study
from ..study.tuning import Tuning
from .options import add_output, add_overrides

DESCRIPTION = f"""\
Compare recipes: a grid of small runs on any folder of images, several seeds, one table and one figure.

  excb-pretrain study                                the studies and their cells
  excb-pretrain study balancers --data DIR           run it, or resume it
  excb-pretrain study balancers --data DIR --dry-run
  excb-pretrain study batch-size --data DIR --seeds 5 --cells excb-16,excb-256 optim.epochs=12
  excb-pretrain study methods --data DIR --tune optim.base_lr=0.3,0.6,1.2

Images are those of DIR/train, or DIR, as files or as tar shards. With labels (one folder per class), k-NN is measured
on DIR/test or else DIR/val, or leave-one-out on the training images. Cells change the recipe {BASE}; overrides
apply to all cells."""

MOST_SEEDS = 1000  # more is a typo


def add_options(parser: Parser) -> None:
    """A study, its images and how much of it to run."""
    parser.add_argument("name", metavar="NAME", nargs="?", default="list", help="the study; none lists all")
    add_overrides(parser)
    parser.add_argument("--data", metavar="DIR", help="images at any depth, or tar shards; labels are for figures only")
    parser.add_argument(
        "--out",
        type=local_path,
        metavar="DIR",
        default=Path("studies"),
        help="write the study to DIR/NAME (default: studies)",
    )
    parser.add_argument("--seeds", type=int, metavar="N", default=3, help="seeds of every cell (default: 3)")
    parser.add_argument("--cells", metavar="A,B", help="run only these cells; the table has all finished ones")
    parser.add_argument(
        "--tune",
        action="append",
        metavar="FIELD=A,B,C",
        default=[],
        help="every cell tries these values with one seed and takes its best; repeat it to combine fields",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would run and about how long it takes")
    parser.add_argument("--list", action="store_true", help="print the studies and their cells")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """List the studies, or run one of them."""
    reporter = Reporter(quiet=options.quiet)
    if options.list or options.name == "list":
        return _list(reporter, as_json=options.json)
    selected = find_study(options.name)
    if not 1 <= options.seeds <= MOST_SEEDS:
        raise UserError(f"--seeds takes 1 to {MOST_SEEDS:,}")
    if not options.data:
        raise UserError("name the folder of images with --data DIR")
    cells = [name.strip() for name in options.cells.split(",")] if options.cells is not None else None
    # Mistakes are reported before torch loads, which takes seconds.
    selected.select(cells)
    base = overrides.apply(overrides.find_recipe(BASE), options.overrides)
    selected.refuse_values_without_effect(options.overrides)
    Tuning(tuple(options.tune)).check(selected, base)
    from ..data.hub_stream import refuse_stream
    from ..study.runner import run_study

    refuse_stream(options.data, "study")
    return run_study(
        selected,
        options.data,
        options.out,
        reporter,
        seeds=options.seeds,
        cells=cells,
        values=options.overrides,
        tune=options.tune,
        dry_run=options.dry_run,
        as_json=options.json,
    )


def _list(reporter: Reporter, *, as_json: bool) -> int:
    if as_json:
        listing = {
            study.name: {
                "asks": study.asks,
                "paper": study.paper,
                "cells": {cell.name: list(cell.overrides) for cell in study.cells},
            }
            for study in STUDIES.values()
        }
        reporter.answer(json.dumps(listing, indent=2))
        return 0
    for study in STUDIES.values():
        rows = [[cell.name, " ".join(cell.overrides)] for cell in study.cells]
        reporter.table(f"{study.name}: {study.asks} (in the paper: {study.paper})", ["cell", "overrides"], rows)
        reporter.answer("")
    return 0


STUDY = Command(
    "study",
    "small runs side by side: balancers, batch sizes, components ...",
    add_options,
    run,
    DESCRIPTION,
    group="train",
    examples=(
        "study balancers --data photos --dry-run",
        "study batch-size --data photos --seeds 5",
    ),
)
