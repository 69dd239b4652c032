"""`excb-zoo pull`: fetch, verify and convert checkpoints now, from their homes or from a bundle."""

import argparse
from pathlib import Path

from excb.cli import Command, Parser
from excb.console import Reporter
from excb.errors import UserError

from .options import add_network


def add_options(parser: Parser) -> None:
    """Which checkpoints, or which bundle."""
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="names, hf-hub:user/repo[@revision] or https://... addresses"
    )
    add_network(parser)
    parser.add_argument(
        "--from-bundle", type=Path, metavar="FILE", help="take them from an archive that `excb-zoo bundle` wrote"
    )


def run(options: argparse.Namespace) -> int:
    """Fetch them, and print how to load each."""
    reporter = Reporter()
    if options.from_bundle is not None:
        from ..bundle import unbundle

        for name in unbundle(options.from_bundle, reporter):
            reporter.note(f'{name} is here: load it with excb.load("{name}")')
    elif not options.names:
        raise UserError("name a checkpoint (`excb-zoo list` shows all), or an archive with --from-bundle")
    from excb.hub.loading import obtain

    for name in options.names:
        folder = obtain(name, network=options.network)
        reporter.note(f'{name} is in {folder}: load it with excb.load("{name}")')
    return 0


PULL = Command(
    "pull",
    "fetch, verify and convert checkpoints",
    add_options,
    run,
    group="use",
    examples=(
        "pull rn50_400ep",
        "pull tiny_grocery",
    ),
)
