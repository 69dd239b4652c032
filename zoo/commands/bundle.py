"""`excb-zoo bundle`: one archive of checkpoints for machines without a network."""

import argparse
from pathlib import Path

from excb.cli import Command, Parser
from excb.console import Reporter

from .options import SOURCE


def add_options(parser: Parser) -> None:
    """Which checkpoints, and the archive."""
    parser.add_argument("names", metavar="NAME", nargs="+", help=SOURCE)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.tar")


def run(options: argparse.Namespace) -> int:
    """Write the archive, and print how to read it."""
    from ..bundle import bundle

    bundle(options.names, options.out, Reporter())
    Reporter().note(f"wrote {options.out}: on the other machine, `excb-zoo pull --from-bundle {options.out.name}`")
    return 0


BUNDLE = Command(
    "bundle",
    "one archive of checkpoints for machines without a network",
    add_options,
    run,
    group="publish",
    examples=(
        "bundle --out bundle.tar tiny_grocery",
        "bundle --out bundle.tar tiny_grocery rn50_400ep",
    ),
)
