"""`excb-zoo export`: write a backbone in the format of another program."""

import argparse
from pathlib import Path

from excb.cli import Command, Parser
from excb.console import Reporter

from .options import add_network, add_source


def add_options(parser: Parser) -> None:
    """A checkpoint, where to, and the format."""
    add_source(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="the folder or file to write")
    parser.add_argument(
        "--format", default="excb", metavar="F", help="excb (default), timm, torchvision, detectron2 or onnx"
    )
    add_network(parser)


def run(options: argparse.Namespace) -> int:
    """Write it, and print how to load it."""
    from ..export import export

    written = export(options.source, options.out, network=options.network, format=options.format)
    network = "" if options.network == "teacher" else f', network="{options.network}"'
    how = f': load it with excb.load("{written}"{network})' if options.format == "excb" else ""
    Reporter().note(f"wrote {written}{how}")
    return 0


EXPORT = Command("export", "write a backbone for other programs", add_options, run)
