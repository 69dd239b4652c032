"""`excb-eval layers`: its options and its record."""

import argparse
from typing import TYPE_CHECKING, Any

from excb.cli import Parser
from excb.console import Reporter
from excb.errors import UserError

from ..old_protocol import Protocol
from ..options import add_task_options
from ..protocol import Family, one_pass
from ..reporting.fields import named
from ..task_command import TaskCommand, Work
from .poolings import POOLINGS

if TYPE_CHECKING:
    from excb.results.result import Result

    from ..reporting.predictions import Predictions, Scored
    from ..task import Task
    from .picture import LayerFiles
    from .protocol import Request

_BEST, _ALL, _NONE = "best", "all", "none"


def _add_options(parser: Parser) -> None:
    add_task_options(parser)
    add = parser.add_argument
    add(
        "--probe",
        choices=("linear", "knn"),
        default="linear",
        help="probe that evaluates a cell (default: linear heads)",
    )
    add("--blocks", type=int, nargs="+", metavar="N", help="counted from 1 (default: all)")
    add("--poolings", nargs="+", choices=POOLINGS, metavar="NAME", help=f"{', '.join(POOLINGS)} (default: all it has)")
    add(
        "--attentive",
        nargs="+",
        default=[_BEST],
        metavar="N",
        help="blocks with attentive probes; best (default): the best one so far and the last; all; none",
    )
    add("--epochs", type=int, metavar="N", help="epochs for the heads, instead of 30")
    add("--lr", type=float, nargs="+", metavar="LR", help="learning rates of the linear heads to try")
    add("--wd", type=float, nargs="+", metavar="WD", help="weight decays of the linear heads to try")
    add("--seed", type=int, default=0, metavar="S", help="default: 0")


def _request(args: argparse.Namespace) -> "Request":
    from .protocol import Request

    return Request(
        blocks=None if args.blocks is None else tuple(args.blocks),
        poolings=None if args.poolings is None else tuple(args.poolings),
        attentive=_attentive(args.attentive),
        probe=args.probe,
        epochs=args.epochs,
        lr=None if args.lr is None else tuple(args.lr),
        wd=None if args.wd is None else tuple(args.wd),
        seed=args.seed,
    )


def _attentive(words: list[str]) -> Any:
    if words == [_BEST]:
        return _BEST
    if words == [_NONE]:
        return ()
    if words == [_ALL]:
        return _ALL
    try:
        return tuple(map(int, words))
    except ValueError:
        raise UserError.on_all_ranks(
            f"--attentive {' '.join(words)}: name blocks by numbers, or best, all or none"
        ) from None


def _check(args: argparse.Namespace) -> None:
    _attentive(args.attentive)


def _work(args: argparse.Namespace, task: "Task", _reporter: Reporter) -> Work:
    from ..probes.rows import part_extraction
    from .protocol import check, storage

    plan = check(task, _request(args))
    then = [storage(task, plan)]
    if args.probe == "linear":
        heads = len(plan.linear.lr) * len(plan.linear.weight_decay)
        then.append(f"{heads} heads for each cell, {plan.linear.epochs} epochs")
        if args.attentive == [_BEST]:
            then.append("then patches of two blocks in another pass, with attentive probes")
    both = {"train": task.train, "test": task.test}
    return Work(both, then=tuple(then), extract=lambda images: part_extraction(task, images, plan.parts, plan.shapes))


def _measure(args: argparse.Namespace, task: "Task", reporter: Reporter, table: bool) -> "tuple[Result, Predictions]":
    from .protocol import evaluate

    return evaluate(task, reporter, _request(args), table=table)


def _files(scored: "Scored") -> "LayerFiles":
    from .picture import LayerFiles

    return LayerFiles(scored)


_COMMAND = TaskCommand(_measure, _check, _work, files=_files)
LAYERS = Protocol(
    name="layers",
    help="every block and pooling of a backbone: the best one, chosen on held-out train images",
    add_options=_add_options,
    run=_COMMAND.run,
    open=_COMMAND.open,
    families=(
        Family("layers", "Best block and pooling", "best layer"),
        Family("layers_default", "What the backbone returns, beside its best layer", "default layer"),
    ),
    headline="layers_top1",
    cost=one_pass,
    result_fields=lambda settings, _kind: named(settings),
    group="frozen features",
    examples=(
        "layers --ckpt timm:vit_base_patch16_224.mae --data photos --out layers.json",
        "layers --ckpt runs/a --data photos --probe knn",
    ),
)
