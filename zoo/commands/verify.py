"""`excb-zoo verify`: hashes, coverage, the load self-test, and whether a checkpoint was ever trained."""

import argparse
import json

from excb.cli import Command, Parser
from excb.console import Reporter
from excb.errors import UserError

from .options import SOURCE, add_json


def add_options(parser: Parser) -> None:
    """Which checkpoints, and the form of the answer."""
    parser.add_argument("names", metavar="NAME", nargs="*", help=SOURCE)
    parser.add_argument("--all", action="store_true", help="verify everything on this machine")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print every check of every checkpoint.

    Raises:
        UserError: a check failed or could not be made.
    """
    from excb.hub.catalogue import checkpoints
    from excb.hub.resolve import local_folder

    from ..verify import verify

    names = [row.name for row in checkpoints() if local_folder(row)] if options.all else options.names
    if not names:
        raise UserError("name a checkpoint to verify, or everything on this machine with --all")
    reporter = Reporter()
    verifications = {name: verify(name, reporter) for name in names}
    rows = [[name, *check] for name, checks in verifications.items() for check in checks]
    if options.json:
        keys = ("checkpoint", "check", "state", "what")
        reporter.answer(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
    else:
        reporter.table("Verification", ["checkpoint", "check", "state", "what was found"], rows)
    if failed := [name for name, checks in verifications.items() if any(check.state != "ok" for check in checks)]:
        raise UserError(f"{', '.join(failed)} did not pass: the table says why")
    return 0


VERIFY = Command(
    "verify",
    "hashes, coverage, load self-test, and whether it was ever trained",
    add_options,
    run,
    group="use",
    examples=(
        "verify tiny_grocery",
        "verify runs/a",
    ),
)
