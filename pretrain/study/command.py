"""The command line of `excb-pretrain study`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from excb.cli import Parser, local_path
from excb.console import Reporter
from excb.errors import UserError

from .. import overrides
from .studies import BASE, STUDIES, find_study

DESCRIPTION = f"""\
Compare recipes: a grid of small runs on any folder of images, several seeds, one table and one picture.

  excb-pretrain study                                the studies and their cells
  excb-pretrain study balancers --data DIR           run it, or what is left of it
  excb-pretrain study balancers --data DIR --dry-run
  excb-pretrain study batch-size --data DIR --seeds 5 --cells excb-32,excb-256 optim.epochs=12

Images are those of DIR/train, or DIR, as files or as tar shards. With labels (a folder a class), k-NN is asked about
DIR/test or else DIR/val, or about every training image by the others. Cells change the recipe {BASE}; overrides
are for all cells."""

MOST_SEEDS = 1000  # more is a slip of the finger


def main(argv: Sequence[str]) -> int:
    """Run `excb-pretrain study` with its own arguments, and return the exit code."""
    parser = Parser(
        prog="excb-pretrain study", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", metavar="NAME", nargs="?", default="list", help="the study; none lists all")
    parser.add_argument("values", metavar="section.field=value", nargs="*", help="values for all cells")
    parser.add_argument("--data", metavar="DIR", help="images at any depth, or tar shards; labels are for figures only")
    parser.add_argument(
        "--out",
        type=local_path,
        metavar="DIR",
        default=Path("studies"),
        help="the study goes into DIR/NAME (default: studies)",
    )
    parser.add_argument("--seeds", type=int, metavar="N", default=3, help="seeds of every cell (default: 3)")
    parser.add_argument("--cells", metavar="A,B", help="run these cells only; the table has all that are finished")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run and about how long it takes")
    parser.add_argument("--list", action="store_true", help="show the studies and their cells")
    parser.add_argument("--json", action="store_true", help="print the table, or the listing, as JSON")
    parser.add_argument("--quiet", action="store_true", help="no notes, no progress")
    chosen = parser.parse_intermixed_args(argv)
    reporter = Reporter(quiet=chosen.quiet)
    if chosen.list or chosen.name == "list":
        return _list(reporter, as_json=chosen.json)
    found = find_study(chosen.name)
    if not 1 <= chosen.seeds <= MOST_SEEDS:
        raise UserError(f"--seeds takes 1 to {MOST_SEEDS:,}")
    if not chosen.data:
        raise UserError("name the folder of images with --data DIR")
    cells = [name.strip() for name in chosen.cells.split(",")] if chosen.cells is not None else None
    found.select(cells)  # mistakes are told before the seconds that torch takes to load
    overrides.apply(overrides.find_recipe(BASE), chosen.values)
    from ..data.hub_stream import refuse_stream
    from .runner import study

    refuse_stream(chosen.data, "study")
    return study(
        found,
        chosen.data,
        chosen.out,
        reporter,
        seeds=chosen.seeds,
        cells=cells,
        values=chosen.values,
        dry_run=chosen.dry_run,
        as_json=chosen.json,
    )


def _list(reporter: Reporter, *, as_json: bool) -> int:
    """Print every study and its cells."""
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
