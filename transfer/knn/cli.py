"""`excb-eval knn`: its options and its record."""

import argparse
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from excb.cli import Parser
from excb.console import Reporter

from ..options import BASELINES, add_baselines, add_task_options
from ..protocol import Family, Fields, FigureKind, InSuite, Protocol, SuiteStep, one_pass
from ..reporting.fields import named
from ..task_command import TaskCommand, Work

if TYPE_CHECKING:
    from excb.results.result import Result

    from ..reporting.report import Packed
    from ..task import Task

_FIGURE = re.compile(r"knn_(top[15]|mAP|mAP11)(?:_k(\d+))?(?:_T([\d.e+-]+))?")


def _add_options(parser: Parser) -> None:
    add_task_options(parser)
    add_baselines(parser)
    add = parser.add_argument
    add("--k", type=int, nargs="+", metavar="K", help="neighbours that vote (default: 10 20 100 200)")
    add(
        "--temperature",
        type=float,
        nargs="+",
        default=[0.07],
        metavar="T",
        help="temperature of the vote (default: 0.07)",
    )
    add("--backend", choices=("auto", "faiss", "torch"), default="auto", help="search backend; all give the same")


def _measure(args: argparse.Namespace, task: "Task", reporter: Reporter, table: bool) -> "tuple[Result, Packed]":
    from ..data.multilabel import has_label_sets
    from . import label_sets, protocol

    options = {"ks": args.k, "temperatures": args.temperature, "backend": args.backend, "table": table}
    if has_label_sets(task.train):
        return label_sets.evaluate(task, reporter, **options)
    return protocol.evaluate(task, reporter, **options)


def _work(args: argparse.Namespace, task: "Task", reporter: Reporter) -> Work:
    from .protocol import check

    ks, search = check(task, reporter, ks=args.k, temperatures=args.temperature, backend=args.backend)
    votes = f"{max(ks)} neighbours of each test image among the train images, by {search}"
    return Work({"train": task.train, "test": task.test}, then=(votes,))


def _kind_of(figure: str) -> FigureKind | None:
    if (match := _FIGURE.fullmatch(figure)) is None:
        return None
    settings: list[tuple[str, Any]] = [("k", int(match[2]))] if match[2] else []
    settings += [("T", float(match[3]))] if match[3] else []
    return FigureKind("knn", match[1].replace("top", "top-"), tuple(settings))


def _of_result(settings: Mapping[str, Any], kind: FigureKind) -> Fields:
    """The fields of a measured figure. Top-5 of older versions stands apart: it counted classes without a vote."""
    older = kind.metric == "top-5" and "top5" not in settings
    return named(_of_one_figure(settings, kind)) | ({"top5": "also classes without a vote"} if older else {})


def _of_one_figure(settings: Mapping[str, Any], kind: FigureKind) -> Fields:
    """k and T of one figure of a grid: the figure's name holds what the settings have several of."""
    return {"k": _only(settings.get("k")), "T": _only(settings.get("temperature"))} | dict(kind.settings)


def _only(values: Any) -> Any:
    return values[0] if isinstance(values, list) and len(values) == 1 else values


def _steps(_task: "Task", _args: argparse.Namespace, depends_on: Mapping[str, Any]) -> list[SuiteStep]:
    return [SuiteStep("knn", "k-NN", ["knn"], depends_on=depends_on)]


_COMMAND = TaskCommand(_measure, work=_work, multilabel=True)
KNN = Protocol(
    name="knn",
    help="weighted k-nearest-neighbour vote on frozen features (DINO's protocol)",
    add_options=_add_options,
    run=_COMMAND.run,
    open=_COMMAND.open,
    families=(Family("knn", "k-NN on frozen features", "k-NN"),),
    kind_of=_kind_of,
    headline="knn_top1_k20",
    cost=one_pass,
    result_fields=_of_result,
    claim_fields=_of_one_figure,
    references=("untrained", *BASELINES),
    in_suite=InSuite(names=("knn",), steps=_steps),
    group="frozen features",
    examples=(
        "knn --ckpt runs/a --data photos --out knn.json",
        "knn --ckpt timm:resnet50 --train a --test b",
    ),
)
