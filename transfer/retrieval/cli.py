"""`excb-eval retrieval`: its options and its record."""

import argparse
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from excb.cli import Parser
from excb.console import Reporter

from ..options import BASELINES, add_baselines, add_task_options
from ..protocol import Family, FigureKind, InSuite, Protocol, SuiteStep, one_pass
from ..task_command import TaskCommand, Work

if TYPE_CHECKING:
    from excb.results.result import Result

    from ..reporting.predictions import ImageScores
    from ..task import Task

_FIGURE = re.compile(r"retrieval_(mAP|R_precision|recall_at_\d+)")
_MOST_PAIRS = 2**30  # of queries and gallery images that `all` compares: minutes on a few cores


def _add_options(parser: Parser) -> None:
    add_task_options(parser)
    add_baselines(parser)
    help_text = "what test images retrieve: train images (default), or the other test images"
    parser.add_argument("--gallery", choices=("train", "test"), default="train", help=help_text)


def _measure(args: argparse.Namespace, task: "Task", reporter: Reporter, table: bool) -> "tuple[Result, ImageScores]":
    from .protocol import evaluate

    return evaluate(task, reporter, gallery=args.gallery, table=table)


def _work(args: argparse.Namespace, task: "Task", _reporter: Reporter) -> Work:
    sets = {"test": task.test} if args.gallery == "test" else {"train": task.train, "test": task.test}
    return Work(sets, then=(f"rankings of the {args.gallery} images for each test image",))


def _kind_of(figure: str) -> FigureKind | None:
    if (match := _FIGURE.fullmatch(figure)) is None:
        return None
    return FigureKind("retrieval", match[1].replace("recall_at_", "recall@").replace("_", "-"))


def _steps(task: "Task", _args: argparse.Namespace, depends_on: Mapping[str, Any]) -> list[SuiteStep]:
    pairs = len(task.train) * len(task.test)
    why = f"it compares {pairs:,} pairs of images: run `excb-eval retrieval` for it" if pairs > _MOST_PAIRS else ""
    return [SuiteStep("retrieval", "Retrieval", ["retrieval"], skipped=why, depends_on=depends_on)]


_COMMAND = TaskCommand(_measure, work=_work, unknown="are left out")
RETRIEVAL = Protocol(
    name="retrieval",
    help="images of the same class by cosine on frozen features: mAP, R-precision, recall@k",
    add_options=_add_options,
    run=_COMMAND.run,
    open=_COMMAND.open,
    families=(Family("retrieval", "Retrieval of images of the same class", "Retrieval"),),
    kind_of=_kind_of,
    cost=one_pass,
    references=("untrained", *BASELINES),
    in_suite=InSuite(names=("retrieval",), steps=_steps),
    group="frozen features",
    examples=(
        "retrieval --ckpt runs/a --data photos",
        "retrieval --ckpt runs/a --train a --test b --gallery test",
    ),
)
