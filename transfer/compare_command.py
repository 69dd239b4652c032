"""`excb-eval compare`: its options, and the command."""

import argparse
from pathlib import Path

from excb.cli import Command, Parser
from excb.console import Reporter


def _add_compare(parser: Parser) -> None:
    add = parser.add_argument
    add("first", type=Path, metavar="A.json")
    add("second", type=Path, metavar="B.json")
    add("--figure", metavar="NAME", help="one figure, or A:B if its names differ")
    add("--json", action="store_true", help="print JSON instead of a table")


def _compare(args: argparse.Namespace) -> int:
    import json

    from .compare import compare_results

    reporter = Reporter()
    comparison = compare_results(args.first, args.second, reporter, figure=args.figure, table=not args.json)
    if args.json:
        reporter.answer(json.dumps(comparison, indent=2))
    return 0


COMPARE = Command(
    "compare",
    "is the difference of two results real? (paired tests and intervals)",
    _add_compare,
    _compare,
    group="everything, and against others",
    examples=(
        "compare a.json b.json",
        "compare a.json b.json --figure knn_top1_k20",
    ),
)
