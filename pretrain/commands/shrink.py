"""`excb-pretrain shrink`: smaller copies of large photographs, so that training does not wait for reading."""

import argparse
import json
from pathlib import Path

from excb.cli import Command, Parser
from excb.console import plural
from excb.errors import require

from .options import add_output, add_range, reporter_of

DESCRIPTION = """\
Write smaller copies of large photographs, upright, as JPEGs in the same sub-folders.

Decoding a photograph of 12 megapixels takes many times as long as a training step on it, and a run reads every
image in every epoch. Run this once, then train on the copies. Files that are small enough are copied as they are.
The same command continues after an interruption.

  excb-pretrain shrink --data photos --out photos256
  excb-pretrain photos_small --data photos256"""
SIDE = 256  # pixels of a copy's shorter side: a crop of a sixteenth of the area still has 64
NAMED = 5  # broken files that are named


def add_options(parser: Parser) -> None:
    """Where the images are, where the copies go, and their size."""
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="a folder of images at any depth")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for the copies; not the folder of the photographs",
    )
    parser.add_argument(
        "--side", type=int, default=SIDE, metavar="PIXELS", help=f"pixels of a copy's shorter side (default: {SIDE})"
    )
    add_range(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Write the copies and say how many there are."""
    from ..data.shrink import shrink_folder

    require(options.side > 0, f"--side takes 1 pixel or more, not {options.side}")
    reporter = reporter_of(options)
    shrunk = shrink_folder(options.data, options.out, reporter, side=options.side, pixel_range=options.range)
    if shrunk.broken:
        more = f" and {len(shrunk.broken) - NAMED:,} more" if len(shrunk.broken) > NAMED else ""
        reporter.warn(
            f"{len(shrunk.broken):,} cannot be read and have no copy: {', '.join(shrunk.broken[:NAMED])}{more}"
        )
    if options.json:
        reporter.answer(json.dumps(shrunk.to_dict(), indent=2))
        return 0
    before, after = shrunk.bytes_before / 2**20, shrunk.bytes_after / 2**20
    there = f", {shrunk.kept:,} were there" if shrunk.kept else ""
    reporter.answer(
        f"{options.out}: {plural(shrunk.written, 'copy', 'copies')}{there}; {before:,.1f} MiB became {after:,.1f}"
    )
    return 0


SHRINK = Command(
    "shrink",
    "smaller copies of large photographs, which train faster",
    add_options,
    run,
    DESCRIPTION,
    group="start here",
    examples=(
        "shrink --data photos --out photos256",
        "shrink --data photos --out photos400 --side 400",
    ),
)
