"""Options that several commands of `excb-zoo` share."""

from pathlib import Path

from excb.cli import Parser

SOURCE = "a name, run folder, checkpoint file or exported folder"


def add_source(parser: Parser) -> None:
    """One checkpoint."""
    parser.add_argument("source", metavar="NAME", help=SOURCE)


def add_json(parser: Parser) -> None:
    """The answer for programs: JSON alone on stdout, and notes on stderr as always."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_overwrite(parser: Parser) -> None:
    """Whether other weights in --out may be lost."""
    parser.add_argument("--overwrite", action="store_true", help="replace what --out has of other weights")


def add_network(parser: Parser) -> None:
    """Which of its two networks."""
    parser.add_argument("--network", choices=("teacher", "student"), default="teacher", help="default: teacher")


def add_results(parser: Parser) -> None:
    """Options that name the results measured on a checkpoint."""
    parser.add_argument(
        "--results", type=Path, nargs="+", default=[], metavar="FILE.json", help="files that excb-eval --out wrote"
    )


def add_untested(parser: Parser) -> None:
    """Why it is published without a passed self-test."""
    parser.add_argument("--untested", metavar="WHY", help="skip the self-test; the card then says so, and why")


def add_licence(parser: Parser) -> None:
    """The licence that it is published under."""
    parser.add_argument("--licence", required=True, metavar="L", help="licence of the weights, such as apache-2.0")
