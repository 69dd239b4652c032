"""`excb-zoo list`: every name, what it is and what it scored."""

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from excb.cli import Command, Parser
from excb.console import Reporter
from excb.errors import UserError

from .options import add_json

if TYPE_CHECKING:
    from excb.hub.catalogue import Checkpoint
    from excb.networks.preprocessing import Preprocessing

HEADER = ("name", "method", "network", "epochs", "batch", "linear %", "k-NN %", "images", "licence")


def add_options(parser: Parser) -> None:
    """Which names, and in what form."""
    parser.add_argument("--method", metavar="M", help="only names of this method, such as ExCB")
    add_json(parser)
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown, as in docs/zoo.md")


def run(options: argparse.Namespace) -> int:
    """Print the catalogue."""
    from excb.hub.catalogue import checkpoints, damaged

    reporter = Reporter()
    for message in damaged():
        reporter.warn(message)
    rows = [row for row in checkpoints() if options.method is None or row.method.lower() == options.method.lower()]
    if options.json:
        reporter.answer(json.dumps([row.to_dict() for row in rows], indent=2))
    elif not rows:
        methods = ", ".join(sorted({row.method for row in checkpoints()}))
        raise UserError(f"no checkpoint is of a method called '{options.method}' (known: {methods})")
    elif options.markdown:
        reporter.answer(_markdown(rows))
    else:
        title = "Checkpoints (figures as the first source states them; `excb-zoo show NAME` has all)"
        header = [*HEADER, "preprocessing", "weights"]
        reporter.table(title, header, [[*_cells(row), _images(row.preprocessing), _state(row)] for row in rows])
    return 0


def _images(preprocessing: "Preprocessing") -> str:
    """How images are prepared, as "256>224 bilinear"; with mean and deviation where they are not ImageNet's."""
    from excb.networks.preprocessing import IMAGENET_MEAN, IMAGENET_STD

    mode = "" if preprocessing.crop_mode == "center" else f" {preprocessing.crop_mode}"
    text = f"{preprocessing.resize}>{preprocessing.crop} {preprocessing.interpolation}{mode}"
    if (preprocessing.mean, preprocessing.std) == (IMAGENET_MEAN, IMAGENET_STD):
        return text
    mean, std = (" ".join(f"{value:g}" for value in values) for values in (preprocessing.mean, preprocessing.std))
    return f"{text}, mean {mean}, std {std}"


def _state(row: "Checkpoint") -> str:
    from excb.hub.resolve import local_folder

    return "here" if local_folder(row) else "to fetch" if row.locations else row.source


def _cells(row: "Checkpoint") -> list[str]:
    """A row of the table: each figure as the first source states it, all on the images of the first."""
    names = ("linear_top1", "knn_top1", "knn_top1_k20")
    listed = [figure for figure in row.figures if figure.name in names]
    images = next((figure.images for figure in listed), "")
    figures = {each.name: f"{round(each.value, 2):g}" for each in reversed(listed) if each.images == images}
    scores = [figures.get("linear_top1", ""), figures.get("knn_top1") or figures.get("knn_top1_k20", "")]
    network = row.architecture.name.removeprefix("timm:")
    sizes = ["" if value is None else str(value) for value in (row.epochs, row.batch)]
    return [row.name, row.method, network, *sizes, *scores, images, row.licence or "none stated"]


def _markdown(rows: "Sequence[Checkpoint]") -> str:
    """The rows whose weights can be loaded, as a Markdown table."""
    cells = [_cells(row) for row in rows if row.locations or row.source == "bundled"]
    lines = [list(HEADER), ["---"] * len(HEADER), *([f"`{name}`", *rest] for name, *rest in cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


LIST = Command(
    "list",
    "all names",
    add_options,
    run,
    group="use",
    examples=(
        "list",
        "list --json",
    ),
)
