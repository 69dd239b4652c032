"""`excb-eval linear`: its options and its record."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.cli import Parser
from excb.console import Reporter
from excb.errors import UserError

from ..old_protocol import InSuite, Protocol, SuiteStep
from ..options import BASELINES, add_baselines, add_task_options
from ..probes.recipes import PROTOCOLS, LinearProtocol, choose
from ..protocol import Family, Fields, FigureKind, one_pass
from ..reporting.fields import named
from ..task_command import TaskCommand, Work

if TYPE_CHECKING:
    from excb.results.result import Result

    from ..published.claim import ClaimImages
    from ..reporting.report import Packed
    from ..task import Task


def _add_options(parser: Parser) -> None:
    add_task_options(parser)
    add_baselines(parser)
    add = parser.add_argument
    add(
        "--protocol",
        dest="recipe",
        default="fast",
        metavar="NAME",
        help="resnet, vit, moco, simsiam, fast, logreg, attentive",
    )
    add("--epochs", type=int, metavar="N", help="instead of the protocol's")
    add("--train-batch", type=int, metavar="B", help="images per step, instead of the protocol's")
    add("--lr", type=float, nargs="+", metavar="LR", help="learning rates to try, instead of the protocol's")
    add("--wd", type=float, nargs="+", metavar="WD", help="weight decays to try, instead of the protocol's")
    add("--C", type=float, nargs="+", metavar="C", help="inverse penalties to try, for logreg")
    add(
        "--select",
        choices=("holdout", "test"),
        default="holdout",
        help="choose a head on a held-out tenth of train (default), or on the test images, as authors do",
    )
    add("--seed", type=int, default=0, metavar="S", help="default: 0")
    add("--state", type=Path, metavar="FILE", help="save the heads here after every epoch, and resume from it")


def _check(args: argparse.Namespace) -> None:
    if args.state is not None and args.state.is_dir():
        raise UserError.on_all_ranks(f"--state {args.state} is a folder: name a file in it")
    read = PROTOCOLS[args.recipe].features if args.recipe in PROTOCOLS else "pooled"
    asked = [f"--{name}" for name in BASELINES if getattr(args, name)]
    if read != "pooled" and asked:
        words = "patch tokens" if read == "patches" else "class tokens"
        raise UserError.on_all_ranks(
            f"--protocol {args.recipe} reads {words}, and {asked[0]} has none: use fast or logreg"
        )


def _work(args: argparse.Namespace, task: "Task", _reporter: Reporter) -> Work:
    from ..data.multilabel import has_label_sets
    from .protocol import check

    if has_label_sets(task.train):
        regressions = f"logistic regressions on these features: {len(_strengths(args))}, each of all classes"
        return Work({"train": task.train, "test": task.test}, then=(regressions,))
    chosen = check(task, **_arguments(args))
    both = {"train": task.train, "test": task.test}
    if not isinstance(chosen, LinearProtocol):
        return Work(both, then=(f"logistic regressions on these features: {len(chosen)}",))
    heads, each_epoch = len(chosen.lr) * len(chosen.weight_decay), len(task.train)
    many = f"{heads} head{'s' if heads > 1 else ''}"
    if chosen.features == "patches":
        from ..features.parts import Part
        from ..probes.rows import part_extraction, shapes_of

        shapes = shapes_of(task)
        last = [Part("patches", len(shapes.maps) - 1)]
        then = (f"{many} on these patches for {chosen.epochs} epochs",)
        return Work(both, then=then, extract=lambda images: part_extraction(task, images, last, shapes))
    if not chosen.augmented:
        return Work(both, chosen.features, then=(f"{many} on these features for {chosen.epochs} epochs",))
    line = (
        f"{many} for {chosen.epochs} epochs, each of {each_epoch:,} new crops of the train images through the network; "
        "none of it is cached"
    )
    chooses = heads > 1 and args.select == "holdout"
    return Work(both if chooses else {"test": task.test}, chosen.features, (line,), chosen.epochs * each_epoch)


def _arguments(args: argparse.Namespace) -> dict[str, Any]:
    """What `protocol.check` and `protocol.evaluate` take."""
    values = {name: getattr(args, name) for name in ("epochs", "lr", "wd", "C", "select", "seed")}
    return values | {"protocol": args.recipe, "batch": args.train_batch}


def _measure(args: argparse.Namespace, task: "Task", reporter: Reporter, table: bool) -> "tuple[Result, Packed]":
    from ..data.multilabel import has_label_sets
    from . import label_sets
    from .protocol import evaluate

    if has_label_sets(task.train):
        return label_sets.evaluate(task, reporter, tried=_strengths(args), seed=args.seed, table=table)
    return evaluate(task, reporter, **_arguments(args), state=args.state, table=table)


def _strengths(args: argparse.Namespace) -> tuple[float, ...]:
    """Of the penalty of images with a set of labels each; options that have no use there are refused."""
    from .label_sets import strengths

    others = {"--epochs": args.epochs, "--train-batch": args.train_batch, "--lr": args.lr, "--wd": args.wd}
    if wrong := [name for name, value in others.items() if value is not None]:
        raise UserError.on_all_ranks(
            f"images with a set of labels each have no use for {', '.join(wrong)}: leave it out"
        )
    return strengths(args.recipe, args.C)


def _kind_of(figure: str) -> FigureKind | None:
    metric = figure.removeprefix("linear_")
    return FigureKind("linear", metric) if metric in ("mAP", "mAP11") and metric != figure else None


def _cost(options: Mapping[str, Any], images: "ClaimImages") -> float | None:
    recipe = PROTOCOLS[options["protocol"]]
    if not recipe.augmented or images.train is None or images.test is None:
        return one_pass(options, images)
    return float(options.get("epochs", recipe.epochs) * images.train + images.test)


def _claim_fields(options: Fields, _kind: FigureKind) -> Fields:
    recipe = choose(
        options["protocol"],
        epochs=options.get("epochs"),
        batch=options.get("train-batch"),
        lr=options.get("lr"),
        weight_decay=options.get("wd"),
    )
    several = len(recipe.lr) * len(recipe.weight_decay) > 1
    return named(asdict(recipe)) | ({"select": options.get("select", "holdout")} if several else {})


def _add_suite_options(parser: Parser) -> None:
    parser.add_argument("--linear", default="fast", metavar="NAME", help="protocol of the linear heads (default: fast)")


def _steps(_task: "Task", args: argparse.Namespace, depends_on: Mapping[str, Any]) -> list[SuiteStep]:
    if args.linear != "logreg":
        choose(args.linear)
    return [SuiteStep("linear", f"Linear, {args.linear}", ["linear", "--protocol", args.linear], depends_on=depends_on)]


_COMMAND = TaskCommand(_measure, _check, _work, multilabel=True)
LINEAR = Protocol(
    name="linear",
    help="linear heads on the frozen backbone",
    add_options=_add_options,
    run=_COMMAND.run,
    open=_COMMAND.open,
    families=(Family("linear", "Linear classification", "Linear"),),
    kind_of=_kind_of,
    state="--state",
    state_suffix=".pt",
    cost=_cost,
    result_fields=lambda settings, _kind: named(settings),
    claim_fields=_claim_fields,
    references=("untrained", *BASELINES),
    in_suite=InSuite(names=("linear",), steps=_steps, add_options=_add_suite_options),
    group="frozen features",
    examples=(
        "linear --ckpt runs/a --data photos",
        "linear --ckpt timm:resnet50 --data torchvision:CIFAR10",
    ),
)
