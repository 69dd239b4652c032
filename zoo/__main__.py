"""`excb-zoo`: export checkpoints and show what they are."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from excb import __version__
from excb.cli import Parser
from excb.console import Reporter
from excb.errors import run

DESCRIPTION = """\
Export checkpoints and show what they are.

  excb-zoo show runs/rn18_small                    what a checkpoint holds
  excb-zoo export runs/rn18_small --out DIR        its backbone alone, for excb.load and timm"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `excb-zoo` and return its exit code."""
    return run("excb-zoo", lambda: _main(argv))


def _parser() -> Parser:
    parser = Parser(prog="excb-zoo", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"excb {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    show = commands.add_parser("show", help="what a checkpoint holds")
    export = commands.add_parser("export", help="write the backbone as safetensors with its preprocessing")
    for command in (show, export):
        command.add_argument("source", metavar="PATH", help="a run folder, checkpoint file or exported folder")
        command.add_argument("--network", choices=("teacher", "student"), default="teacher", help="default: teacher")
    show.add_argument("--json", action="store_true", help="print JSON instead of a table")
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write")
    return parser


def _main(argv: Sequence[str] | None) -> int:
    chosen = _parser().parse_args(argv)
    reporter = Reporter()
    if chosen.command == "export":
        from .export import export

        folder = export(chosen.source, chosen.out, network=chosen.network)
        which = "" if chosen.network == "teacher" else f', network="{chosen.network}"'
        reporter.note(f'wrote {folder}: load it with excb.load("{folder}"{which})')
        return 0
    from excb.hub import load

    backbone = load(chosen.source, network=chosen.network)
    entry = backbone.entry
    facts = {
        "source": entry.source,
        "architecture": entry.architecture.name,
        "options": entry.architecture.options,
        "network": entry.network,
        "parameters": sum(parameter.numel() for parameter in backbone.parameters()),
        "width": backbone.width,
        "preprocessing": backbone.transform.to_dict(),
        "recipe": entry.recipe.get("name"),
        "step": entry.step,
        "epoch": entry.epoch,
    }
    if chosen.json:
        print(json.dumps(facts, indent=2))
    else:
        reporter.table(str(chosen.source), ["", "value"], [[name, str(value)] for name, value in facts.items()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
