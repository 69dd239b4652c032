"""`excb-zoo push`: publish a checkpoint on the Hugging Face Hub."""

import argparse
import json

from excb.cli import Command, Parser
from excb.console import Reporter

from .options import add_json, add_licence, add_results, add_source, add_untested


def add_options(parser: Parser) -> None:
    """A checkpoint, the repository, and what is published with it."""
    add_source(parser)
    parser.add_argument("--repo", required=True, metavar="USER/NAME")
    add_licence(parser)
    add_results(parser)
    parser.add_argument("--tag", metavar="T", help="tag of the revision (default: from version and step)")
    add_untested(parser)
    parser.add_argument("--private", action="store_true", help="make the repository readable only by you")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Publish it."""
    from excb.hub.catalogue import to_toml

    from ..push import push

    reporter = Reporter()
    entry = push(
        options.source,
        options.repo,
        results=options.results,
        tag=options.tag,
        private=options.private,
        licence=options.licence,
        untested=options.untested,
        reporter=reporter,
    )
    if options.json:
        reporter.answer(json.dumps({"repository": options.repo, "checkpoint": entry.to_dict()}, indent=2))
        return 0
    reporter.note("to give it this name for everyone, propose these lines for excb/hub/catalogue.toml:")
    reporter.answer(to_toml(entry))
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
