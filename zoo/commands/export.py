"""`excb-zoo export`: write a backbone in the format of another program."""

import argparse
import json
from pathlib import Path

from excb.cli import Command, Parser
from excb.console import Reporter

from .options import add_json, add_network, add_overwrite, add_source


def add_options(parser: Parser) -> None:
    """A checkpoint, where to, and the format."""
    add_source(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="the folder or file to write")
    parser.add_argument(
        "--format", default="excb", metavar="F", help="excb (default), timm, torchvision, detectron2 or onnx"
    )
    add_network(parser)
    add_overwrite(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Write it, and print how to load it."""
    from ..export import export_with_snippet

    written, code, file = export_with_snippet(
        options.source, options.out, network=options.network, format=options.format, overwrite=options.overwrite
    )
    reporter = Reporter()
    reporter.note(f"wrote {written} and {file}, which loads it:")
    answer = {"written": str(written), "format": options.format, "python": str(file), "code": code}
    reporter.answer(json.dumps(answer, indent=2) if options.json else code.rstrip())
    return 0


EXPORT = Command(
    "export",
    "write a backbone for other programs",
    add_options,
    run,
    group="use",
    examples=(
        "export runs/a --out folder",
        "export runs/a --format timm --out model.safetensors",
    ),
)
