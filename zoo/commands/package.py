"""`excb-zoo package`: what push would upload, in a folder."""

import argparse
import json
from pathlib import Path

from excb.cli import Command, Parser
from excb.console import Reporter

from .options import add_json, add_licence, add_overwrite, add_results, add_source, add_untested


def add_options(parser: Parser) -> None:
    """A checkpoint, where to, and what is published with it."""
    add_source(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder to write; its name becomes the checkpoint's name"
    )
    add_licence(parser)
    add_results(parser)
    add_untested(parser)
    add_overwrite(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Write the folder."""
    from ..push import package

    entry, _tag = package(
        options.source,
        options.out,
        results=options.results,
        licence=options.licence,
        untested=options.untested,
        overwrite=options.overwrite,
    )
    reporter, tested = Reporter(), "self-test passed" if options.untested is None else "not tested"
    reporter.note(f"wrote {options.out}: {tested}; its card is README.md")
    if options.json:
        reporter.answer(json.dumps({"folder": str(options.out), "checkpoint": entry.to_dict()}, indent=2))
    return 0


PACKAGE = Command(
    "package",
    "all that push would upload, in a folder: look at it first",
    add_options,
    run,
    group="publish",
    examples=(
        "package runs/a --out folder --licence apache-2.0",
        "package runs/a --out folder --licence mit --results knn.json",
    ),
)
