"""`excb-eval robustness`: its options and its record."""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.cli import Parser
from excb.console import Reporter

from ..old_protocol import Protocol
from ..options import add_task_options
from ..protocol import Family, Fields, FigureKind
from ..reporting.fields import named, without
from ..task_command import TaskCommand, Work
from .names import ALL, COMMON, GROUPS, SEVERITIES, chosen

if TYPE_CHECKING:
    from excb.images.image_set import Images
    from excb.results.result import Result

    from ..published.claim import ClaimImages
    from ..reporting.predictions import ImageScores
    from ..task import Task
    from .request import Request

_SUMMARY = {
    "corrupted_top1": FigureKind("robustness", "corrupted top-1"),
    "clean_top1": FigureKind("robustness", "clean top-1"),
    "relative_drop": FigureKind("robustness", "relative drop", unit="% of the clean accuracy", higher_is_better=False),
    "mce": FigureKind("robustness", "mCE", unit="% of the reference's error", higher_is_better=False),
    "relative_mce": FigureKind(
        "robustness", "relative mCE", unit="% of the rise of the reference's error", higher_is_better=False
    ),
    "clean_ece": FigureKind("robustness", "clean ECE", higher_is_better=False),
    "corrupted_ece": FigureKind("robustness", "corrupted ECE", higher_is_better=False),
    "labels_top1": FigureKind("robustness_sets", "several labels top-1"),
}
_ON = re.compile(r"on_(\w+?)_(clean_top1|top1|ece)")
_WORDS = {"clean_top1": "clean top-1", "top1": "top-1", "ece": "ECE"}
_OF_CORRUPTIONS = ("corruptions", "severities", "library", "corrupted", "reference")
_OF_SETS = ("sets", "candidates", "border")


def _add_options(parser: Parser) -> None:
    add_task_options(parser)
    add = parser.add_argument_group("corruptions of the test images").add_argument
    names = f"common: the paper's fifteen (default), all, none, {', '.join(GROUPS)}, or by name: {', '.join(ALL)}"
    add("--corruptions", nargs="+", default=["common"], metavar="NAME", help=names)
    add("--severities", type=int, nargs="+", default=[*SEVERITIES], metavar="S", help="1 to 5 (default: all)")
    add("--images", type=int, metavar="N", help="number of test images, drawn from every class (default: all)")
    help_text = "errors that mCE is divided by: alexnet (default on ImageNet), untrained, or the file of a result"
    add("--reference", metavar="NAME", help=help_text)
    add = parser.add_argument_group("other test images").add_argument
    help_text = "sets whose class folders are classes of the train set; DIR=MAP.json maps their names"
    add("--also", nargs="+", default=[], metavar="DIR", help=help_text)
    add(
        "--border",
        type=int,
        default=0,
        metavar="PIXELS",
        help="pixels to remove around images of sets with a map (ObjectNet: 2)",
    )
    help_text = "classes that may be predicted on another set: its own (default), or all"
    add("--candidates", choices=("common", "all"), default="common", help=help_text)
    add("--labels", type=Path, metavar="FILE", help="several right classes for each test image: ReaL's JSON")
    add = parser.add_argument_group("head").add_argument
    help_text = "penalties; the best on held-out train images is taken (default: 1, 0.1, ... 1e-5)"
    add("--l2", type=float, nargs="+", metavar="L2", help=help_text)
    add("--seed", type=int, default=0, metavar="SEED", help="default: 0")


def _request(args: argparse.Namespace) -> "Request":
    from .request import Request

    given = {} if args.l2 is None else {"l2": tuple(args.l2)}
    return Request(
        corruptions=chosen(args.corruptions),
        severities=tuple(sorted(set(args.severities))),
        images=args.images,
        also=tuple(args.also),
        border=args.border,
        candidates=args.candidates,
        labels=args.labels,
        reference=args.reference,
        seed=args.seed,
        **given,
    )


def _check(args: argparse.Namespace) -> None:
    _request(args).check()


def _measure(args: argparse.Namespace, task: "Task", reporter: Reporter, table: bool) -> "tuple[Result, ImageScores]":
    from .protocol import evaluate

    return evaluate(task, reporter, _request(args), table=table)


def _work(args: argparse.Namespace, task: "Task", reporter: Reporter) -> Work:
    from .request import Ready

    ready = Ready.of(task, _request(args), reporter.note)
    sets: dict[str, Images] = {"train": ready.task.train, "test": ready.task.test}
    sets |= ready.corrupted | {other.name: other.images for other in ready.others}
    cells = len(ready.corrupted) * len(ready.request.severities)
    then = [f"one head on the train images, judged on the test images and {cells} corruptions of them"]
    if ready.corrupted:
        then.append("corrupting an image takes 1 to 200 milliseconds of a core beside that, zoom_blur longest")
    return Work(sets, then=tuple(then))


def _kind_of(figure: str) -> FigureKind | None:
    name = figure.removeprefix("robustness_")
    if name == figure:
        return None
    if (match := _ON.fullmatch(name)) is not None:
        lower = match[2] == "ece"
        return FigureKind("robustness_sets", f"{match[1]} {_WORDS[match[2]]}", higher_is_better=not lower)
    return _SUMMARY.get(name)


def _result_fields(settings: Mapping[str, Any], kind: FigureKind) -> Fields:
    """What defines a figure: other sets do not change those of corruptions, nor the reverse."""
    if kind.family == "robustness_sets":
        own = settings.get("sets", {}).get(kind.metric.partition(" ")[0])  # no set changes the figures of another
        return named(without(settings, _OF_CORRUPTIONS) | {"sets": own})
    left_out = [*_OF_SETS] if "mCE" in kind.metric else [*_OF_SETS, "reference"]
    return named(without(settings, left_out))


def _cost(options: Mapping[str, Any], images: "ClaimImages") -> float | None:
    """Every image passes once, and every test image once more for each corruption and severity."""
    if images.train is None or images.test is None:
        return None
    cells = len(options.get("corruptions", COMMON)) * len(options.get("severities", SEVERITIES))
    return float(images.train + images.test * (1 + cells))


_COMMAND = TaskCommand(_measure, check=_check, work=_work)
ROBUSTNESS = Protocol(
    name="robustness",
    help="one head trained on clean images, judged on corrupted ones and on other test sets: mCE, drop, calibration",
    add_options=_add_options,
    run=_COMMAND.run,
    open=_COMMAND.open,
    families=(
        Family("robustness", "Robustness: corrupted test images", "Robustness"),
        Family("robustness_sets", "Robustness: other test sets", "Robustness"),
    ),
    kind_of=_kind_of,
    headline="robustness_corrupted_top1",
    cost=_cost,
    result_fields=_result_fields,
    group="frozen features",
    examples=(
        "robustness --ckpt rn50_400ep --data photos --out robustness.json",
        "robustness --ckpt rn50_400ep --data imagenet --corruptions none --also imagenet-r imagenet-a imagenet-sketch",
    ),
)
