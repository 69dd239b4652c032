"""`excb-eval photos`: from a folder to a page that says what its images are, and what to do next."""

import argparse
import json
from pathlib import Path

from excb.cli import Command, Parser, local_path
from excb.console import Reporter
from excb.errors import require
from excb.option_parser import add_option_fields, of_arguments

from .options import PhotosOptions

DESCRIPTION = """\
What is in a folder of photographs, some of them labelled: files that are no images, copies, the best network at hand by
your labels, guesses for the rest with probabilities, which images to label next, labels that may be wrong. --out gets
photos.html, which shows it all, photos.csv with a row for each image, and photos.json."""
OUT = Path("runs/photos")


def _add(parser: Parser) -> None:
    add_option_fields(parser, PhotosOptions)
    add = parser.add_argument_group("output").add_argument
    add(
        "--out",
        type=local_path,
        default=OUT,
        metavar="DIR",
        help=f"folder for the page and the tables (default: {OUT})",
    )
    add(
        "--overwrite",
        action="store_true",
        help="replace what --out has of other photographs, and a table that was changed since",
    )
    add("--json", action="store_true", help="print what photos.json has, instead of tables")
    add("--quiet", action="store_true", help="print neither notes nor progress")


def _run(args: argparse.Namespace) -> int:
    from excb.files.foreign import read_text

    from .photos import Photos, require_share
    from .report import answer, check_out, write_findings

    options, reporter = of_arguments(PhotosOptions, args), Reporter(quiet=args.quiet)
    require_share(options.sure)
    require(options.next >= 1, f"--next {options.next}: ask for one image at least")
    photos = Photos(
        options.folder,
        options.labels,
        networks=options.networks,
        series=options.series,
        device=options.device,
        cache=options.cache,
        range=options.range,
        seed=options.seed,
        quiet=args.quiet,
    )
    check_out(photos.images, args.out, labels=options.labels, overwrite=args.overwrite)
    findings = photos.findings(sure=options.sure, count=options.next)
    written = write_findings(findings, args.out, reporter)
    reporter.note(f"wrote {', '.join(map(str, written))}")
    if args.json:
        reporter.answer(json.dumps(json.loads(read_text(written[-1])), indent=2))
    else:
        answer(findings, reporter)
    return 0


PHOTOS = Command(
    "photos",
    "a folder of photographs, some labelled: the best network, guesses for the rest, what to label next",
    _add,
    _run,
    DESCRIPTION,
    "features",
    ("photos PHOTOS --labels labels.csv", "photos PHOTOS --labels labels.csv --networks mobilenetv2 runs/adapted"),
)
