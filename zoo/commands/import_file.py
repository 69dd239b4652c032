"""`excb-zoo import`: convert another program's checkpoint file, and give it a name."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from excb.cli import Command, Parser
from excb.console import Reporter
from excb.errors import UserError
from excb.networks.preprocessing import CropMode, Interpolation

from .options import add_json, add_network

_PREPROCESSING = ("resize", "crop", "mean", "std", "interpolation", "crop_mode")


def add_options(parser: Parser) -> None:
    """A file, its name, and what the file does not say."""
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--name", required=True, metavar="N", help="the name for excb.load")
    parser.add_argument("--layout", metavar="L", help="layout of the file, if it is not recognised")
    parser.add_argument(
        "--arch",
        metavar="A",
        help="backbone: resnet50, vit_small, timm:NAME or torchvision:NAME, if it is not recognised",
    )
    parser.add_argument(
        "--arch-option", action="append", default=[], metavar="K=V", help="option of the backbone, such as num_heads=12"
    )
    add_network(parser)
    parser.add_argument(
        "--drop", nargs="+", default=[], metavar="T", help="tensors or modules of the file to leave out"
    )
    parser.add_argument("--resize", type=int, metavar="N", help="resize images: pixels of the shorter side")
    parser.add_argument(
        "--crop", type=int, metavar="N", help="crop images: pixels; if given alone, it scales the resize"
    )
    parser.add_argument("--interpolation", choices=get_args(Interpolation), help="interpolation of the resize")
    parser.add_argument("--crop-mode", choices=get_args(CropMode), help="of the resize and crop, in timm's terms")
    for name in ("mean", "std"):
        parser.add_argument(
            f"--{name}", type=float, nargs=3, metavar=("R", "G", "B"), help=f"{name} per channel, in [0, 1]"
        )
    parser.add_argument(
        "--allow-global",
        action="append",
        default=[],
        metavar="NAME",
        help="allow a harmless name from a fixed short list; errors name it",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace other weights of this name")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Convert the file; print every tensor that does not fit where it cannot."""
    from excb.checkpoint.coverage import CoverageError
    from excb.hub.importing import import_file
    from excb.networks.architecture import Architecture

    architecture_options = _architecture_options(options.arch_option)
    preprocessing = {name: value for name in _PREPROCESSING if (value := getattr(options, name)) is not None}
    _refuse_name_of_catalogue(options.name)
    reporter = Reporter()
    try:
        imported = import_file(
            options.file,
            options.name,
            layout=options.layout,
            architecture=None if options.arch is None else Architecture(options.arch, architecture_options),
            options=architecture_options,
            network=options.network,
            preprocessing=preprocessing,
            drop=options.drop,
            allow=options.allow_global,
            keep="" if options.overwrite else "choose another --name, or replace them with --overwrite",
            reporter=reporter,
        )
    except CoverageError as error:
        if options.json:
            reporter.answer(json.dumps({"mismatches": [row._asdict() for row in error.rows]}, indent=2))
        else:
            title = f"What does not fit in {options.file.name}"
            reporter.table(title, ["", "tensor", "in the file", "in the network"], error.rows)
        raise
    reporter.note(f'wrote {imported.folder}: load it with excb.load("{options.name}")')
    if options.json:
        reporter.answer(json.dumps({"checkpoint": options.name, "folder": str(imported.folder)}, indent=2))
    return 0


def _architecture_options(texts: Sequence[str]) -> dict[str, Any]:
    """Numbers, true, false and lists as in JSON; anything else is text."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--arch-option {text}: write NAME=VALUE, such as num_heads=12")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


def _refuse_name_of_catalogue(name: str) -> None:
    from excb.hub.catalogue import find

    if (row := find(name)) is not None and row.source not in ("imported", "own run"):
        raise UserError(
            f"{name} is the name of a checkpoint in the catalogue: choose another --name, or fetch it with "
            f"`excb-zoo pull {name}`"
        )


IMPORT = Command(
    "import",
    "convert a foreign checkpoint file",
    add_options,
    run,
    group="use",
    examples=(
        "import FILE.pth --name mine",
        "import FILE.pth --name mine --arch timm:tf_efficientnet_lite0",
    ),
)
