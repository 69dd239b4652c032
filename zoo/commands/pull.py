"""`excb-zoo pull`: fetch, verify and convert checkpoints now, from their homes."""

import argparse
import json

from excb.cli import Command, Parser
from excb.console import Reporter
from excb.errors import UserError

from .options import add_json, add_network


def add_options(parser: Parser) -> None:
    """Which checkpoints."""
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="names, hf-hub:user/repo[@revision] or https://... addresses"
    )
    add_network(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Fetch them, and print how to load each."""
    if not options.names:
        raise UserError("name a checkpoint (`excb-zoo list` shows all)")
    from excb.hub.loading import obtain

    reporter, fetched = Reporter(), []
    for name in options.names:
        folder = obtain(name, network=options.network)
        reporter.note(f'{name} is in {folder}: load it with excb.load("{name}")')
        fetched.append({"checkpoint": name, "folder": str(folder)})
    if options.json:
        reporter.answer(json.dumps(fetched, indent=2))
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
