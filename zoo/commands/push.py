"""`excb-zoo push`: publish a checkpoint on the Hugging Face Hub."""

import argparse

from excb.cli import Command, Parser
from excb.console import Reporter

from .options import add_licence, add_results, add_source, add_untested


def add_options(parser: Parser) -> None:
    """A checkpoint, the repository, and what is published with it."""
    add_source(parser)
    parser.add_argument("--repo", required=True, metavar="USER/NAME")
    add_licence(parser)
    add_results(parser)
    parser.add_argument("--tag", metavar="T", help="tag of the revision (default: from version and step)")
    add_untested(parser)
    parser.add_argument("--private", action="store_true", help="make the repository readable only by you")


def run(options: argparse.Namespace) -> int:
    """Publish it."""
    from ..push import push

    push(
        options.source,
        options.repo,
        results=options.results,
        tag=options.tag,
        private=options.private,
        licence=options.licence,
        untested=options.untested,
        reporter=Reporter(),
    )
    return 0


PUSH = Command(
    "push",
    "publish on the Hugging Face Hub",
    add_options,
    run,
    group="publish",
    examples=(
        "push runs/a --repo you/name --licence apache-2.0",
        "push runs/a --repo you/name --licence mit --results knn.json",
    ),
)
