"""`excb-pretrain draw`: the paper's figures, of runs, of the method and of published results."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from excb.cli import Command, Parser
from excb.console import Reporter, plural
from excb.errors import UserError

from .options import add_range

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DESCRIPTION = """\
Draw the paper's figures as PNG or SVG, depending on the file name.

  excb-pretrain draw statistics RUN --out run.svg             loss, confidence, sizes, agreement, purity by epoch
  excb-pretrain draw statistics A B --labels linear none --out both.png          several runs overlaid
  excb-pretrain draw tsne RUN --data DIR --classes cat dog --out tsne.png        projected features of some classes
  excb-pretrain draw balancing --out b.svg                    B(z; s), linear and squared
  excb-pretrain draw boundary --out boundary.svg              how B moves the boundary of two clusters (Figure 1)
  excb-pretrain draw accuracy --out epochs.svg                accuracy against epochs (Figure 2)"""


def add_options(parser: Parser) -> None:
    """The kinds of figures, each with its own options."""
    kinds = parser.add_subparsers(metavar="KIND", required=True)

    def kind(name: str, text: str) -> Parser:
        added = kinds.add_parser(name, help=text, description=text)
        added.add_argument("--out", type=Path, nargs="+", required=True, metavar="FILE", help="figures, .png or .svg")
        added.add_argument("--quiet", action="store_true", help="print neither notes nor progress")
        return added

    statistics = kind("statistics", "the five training statistics of one or more runs, by epoch")
    statistics.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or their metrics.jsonl")
    statistics.add_argument("--labels", nargs="+", metavar="NAME", help="names of the runs (default: their folders')")
    statistics.set_defaults(draw=_statistics)
    tsne = kind("tsne", "projected features of the teacher, laid out by t-SNE")
    tsne.add_argument("checkpoint", metavar="CKPT", help="a run folder, or a full checkpoint that `excb.load` takes")
    tsne.add_argument("--data", type=Path, required=True, metavar="DIR", help="a folder of class folders")
    tsne.add_argument("--classes", nargs="+", metavar="NAME", help="class folders (default: ImageNet-10)")
    tsne.add_argument("--each", type=int, metavar="N", help="images of every class at most (default: all)")
    tsne.add_argument("--seed", type=int, default=0, help="of t-SNE (default: 0)")
    add_range(tsne)
    tsne.set_defaults(draw=_tsne)
    balancing = kind("balancing", "the balancing operator B(z; s), linear and squared below 1/K")
    balancing.add_argument("--clusters", type=int, default=8, metavar="K", help="number of clusters (default: 8)")
    balancing.add_argument(
        "--similarities", type=float, nargs="+", default=[-0.6, 0.0, 0.6], metavar="Z", help="default: -0.6 0 0.6"
    )
    balancing.set_defaults(draw=_balancing)
    boundary = kind("boundary", "how B moves the boundary between two clusters of unequal size")
    boundary.add_argument(
        "--ratios",
        type=float,
        nargs="+",
        default=[1.0, 1.25, 1.5, 2.0],
        metavar="R",
        help="how many times larger the second cluster is (default: 1 1.25 1.5 2)",
    )
    boundary.add_argument("--angle", type=float, default=90.0, help="between the centroids, in degrees (default: 90)")
    boundary.set_defaults(draw=_boundary)
    accuracy = kind("accuracy", "accuracy against epochs, a circle's area showing the batch size")
    accuracy.add_argument(
        "points",
        nargs="?",
        type=Path,
        metavar="FILE.csv",
        help="columns method, epochs, batch, accuracy; the first method is emphasised (default: the paper's Figure 2)",
    )
    accuracy.set_defaults(draw=_accuracy)


def run(options: argparse.Namespace) -> int:
    """Draw one figure into every file named."""
    from excb.charts.style import check_formats, save_figure
    from excb.files.atomic import check_writable_folder

    check_formats(options.out)  # before minutes of t-SNE
    for file in options.out:
        check_writable_folder(file.parent)
    figure = options.draw(options)
    for file in options.out:
        save_figure(figure, file)
    Reporter(quiet=options.quiet).note(f"drawn: {', '.join(map(str, options.out))}")
    return 0


def _statistics(options: argparse.Namespace) -> "Figure":
    from ..figures.curves import Curves, statistics

    labels = options.labels or [None] * len(options.runs)
    if len(labels) != len(options.runs):
        raise UserError(
            f"--labels has {plural(len(labels), 'name')} for {plural(len(options.runs), 'run')}: give one for each"
        )
    return statistics([Curves.read(run, label) for run, label in zip(options.runs, labels, strict=True)])


def _tsne(options: argparse.Namespace) -> "Figure":
    from excb.distributed.machine import choose_device

    from ..figures.tsne import compute_plane, tsne

    if options.each is not None and options.each < 1:
        raise UserError("--each must be at least 1")
    if not 0 <= options.seed < 2**32:
        raise UserError(f"--seed must be from 0 to {2**32 - 1}")
    plane = compute_plane(
        options.checkpoint,
        options.data,
        Reporter(quiet=options.quiet),
        classes=options.classes,
        each=options.each,
        seed=options.seed,
        pixel_range=options.range,
        device=choose_device("auto"),
        out=options.out,
    )
    return tsne(plane)


def _balancing(options: argparse.Namespace) -> "Figure":
    from ..figures.diagrams import balancing_curves

    if options.clusters < 2 or not all(abs(z) <= 1 for z in options.similarities):  # NaN fails too
        raise UserError("--clusters must be at least 2, and --similarities are cosines from -1 to 1")
    return balancing_curves(clusters=options.clusters, similarities=options.similarities)


def _boundary(options: argparse.Namespace) -> "Figure":
    from ..figures.diagrams import boundary_shift

    if not all(0 < ratio < math.inf for ratio in options.ratios) or not 0 < options.angle <= 180:
        raise UserError("--ratios must be above 0 and finite, and --angle is above 0 and at most 180 degrees")
    return boundary_shift(ratios=options.ratios, angle=options.angle)


def _accuracy(options: argparse.Namespace) -> "Figure":
    from ..figures.diagrams import PAPER, accuracy_against_epochs, read_points

    return accuracy_against_epochs(read_points(options.points or PAPER))


DRAW = Command(
    "draw",
    "the paper's figures, and those of runs",
    add_options,
    run,
    DESCRIPTION,
    group="figures",
    examples=(
        "draw statistics runs/a --out run.svg",
        "draw balancing --out b.svg",
    ),
)
