"""`excb-eval semisup` and `excb-eval finetune`: their options and their records."""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.cli import Parser
from excb.console import Reporter
from excb.errors import UserError, require

from ..old_protocol import InSuite, Protocol, SuiteStep
from ..options import add_task_options
from ..protocol import Family, Fields, FigureKind
from ..reporting.fields import named
from ..task_command import TaskCommand, Work

if TYPE_CHECKING:
    import numpy as np

    from excb.results.result import Result

    from ..published.claim import ClaimImages
    from ..reporting.predictions import Predictions
    from ..task import Task
    from .training import Settings

_TRAINING_PASS = 3  # a forward and a backward pass cost about three forward passes
# What options of the command line are called in the settings of a training.
_SETTINGS = {"epochs": "epochs", "train_batch": "batch"} | {
    each: each for each in ("backbone_lr", "head_lr", "precision")
}


def _add_semisup(parser: Parser) -> None:
    add_task_options(parser)
    parser.add_argument("--percent", type=int, choices=(1, 10), required=True, help="percentage of the labels")
    parser.add_argument("--frozen", action="store_true", help="logistic regression on frozen features instead")
    _add_training_options(parser)
    parser.set_defaults(fraction=1.0)


def _add_finetune(parser: Parser) -> None:
    add_task_options(parser)
    parser.add_argument("--fraction", type=float, default=1.0, metavar="F", help="fraction of the labels (default: 1)")
    _add_training_options(parser)
    parser.set_defaults(percent=None, frozen=False)


def _add_training_options(parser: Parser) -> None:
    add = parser.add_argument_group("training").add_argument
    add("--seeds", type=int, nargs="+", default=[0], metavar="S", help="seeds of the trainings to average (default: 0)")
    add(
        "--settings",
        choices=("auto", "paper", "few-labels"),
        help="the paper's, or those for few labels (default: auto, the latter below 5,120 images, but for the paper's "
        "shares of ImageNet and where you name a learning rate)",
    )
    add("--epochs", type=int, metavar="N", help="default: 50")
    add("--train-batch", type=int, metavar="B", help="images per step (default: from the settings: 512, or fewer)")
    add("--backbone-lr", type=float, metavar="LR", help="instead of the settings'")
    add("--head-lr", type=float, metavar="LR", help="instead of the settings'")
    add("--precision", choices=("fp32", "bf16"), help="default: fp32")
    add("--split-file", type=Path, metavar="FILE", help="file with the names of the train images to use, one per line")
    add("--state", type=Path, metavar="DIR", help="keep unfinished trainings here and resume from them")


def _check(args: argparse.Namespace) -> None:
    options = [name for name in (*_SETTINGS, "settings", "state") if getattr(args, name) is not None]
    if args.frozen and options:
        raise UserError.on_all_ranks(
            f"--frozen fits a logistic regression, which has no --{options[0].replace('_', '-')}: leave it out"
        )

    if args.fraction != 1 and args.split_file is not None:
        raise UserError.on_all_ranks(
            "--split-file names the images of the share, so --fraction has no use: leave one out"
        )


def _work(args: argparse.Namespace, task: "Task", _reporter: Reporter) -> Work:
    from excb.images.subset import Subset

    from .protocol import check

    share, source = check(task, **_arguments(args, task))
    settings = _settings(args, task, len(share))
    images = f"{len(share):,} train images ({source})"
    if args.frozen:
        line = f"a logistic regression on the features of {images}"
        return Work({"the share": Subset(task.train, share), "test": task.test}, then=(line,))
    seeds = len(args.seeds)
    line = (
        f"{seeds} training{'s' if seeds > 1 else ''} of all weights, {settings.epochs} epochs of {images}, and the "
        "test images through each network; none of it is cached"
    )
    each = _TRAINING_PASS * settings.epochs * len(share) + len(task.test)
    return Work({}, then=(line,), passes=seeds * each)


def _measure(args: argparse.Namespace, task: "Task", reporter: Reporter, table: bool) -> "tuple[Result, Predictions]":
    from .protocol import check, evaluate

    arguments = _arguments(args, task)
    settings = _settings(args, task, len(check(task, **arguments)[0]))
    return evaluate(task, reporter, **arguments, settings=settings, state=args.state, table=table)


def _arguments(args: argparse.Namespace, task: "Task") -> dict[str, Any]:
    """What `protocol.check` and `protocol.evaluate` take."""
    from .protocol import is_imagenet

    listed = args.split_file is not None or (args.percent is not None and is_imagenet(task.train))
    values = {name: getattr(args, name) for name in ("percent", "fraction", "seeds", "frozen")}
    return values | {"split": _split(args, task) if listed else None}


def _settings(args: argparse.Namespace, task: "Task", images: int) -> "Settings":
    """The settings for a share of so many images, with those that the user named."""
    from dataclasses import replace

    from .protocol import Choice, is_published, settings_for

    options = {setting: getattr(args, option) for option, setting in _SETTINGS.items()}
    changes = {name: value for name, value in options.items() if value is not None}
    # Rates that somebody found are those of a head that starts at random.
    own_rates = args.backbone_lr is not None or args.head_lr is not None
    choice: Choice = args.settings or ("paper" if own_rates else "auto")
    chosen = settings_for(images, percent=args.percent, published=is_published(task, args.percent), choice=choice)
    return replace(chosen, **changes)


def _split(args: argparse.Namespace, task: "Task") -> "np.ndarray":
    """The train images that a file names: the user's, or SimCLR's list for ImageNet."""
    from excb.remote.home import cache_root

    from ..data.splits import simclr_split

    return simclr_split(args.percent or 10, task.train, file=args.split_file, cache=args.cache or cache_root())


def _result_fields(settings: Fields, _kind: FigureKind) -> Fields:
    settings = dict(settings)
    if isinstance(share := settings.pop("share", None), dict):
        settings |= {"share": f"{share.get('images')} images", "split": str(share.get("sha256"))[:12]}
    return named(settings)


def _claim_fields(options: Fields, _kind: FigureKind) -> Fields:
    from .protocol import SETTINGS

    settings = SETTINGS[options["percent"]].to_dict()
    for option, name in _SETTINGS.items():
        settings[name] = options.get(option.replace("_", "-"), settings[name])
    return named(settings) | {"share": f"{options['percent']} %", "split": "SimCLR's list"}


def _label(result: "Result") -> str:
    """The percentage is no part of the result's protocol, and two of them may be submitted."""
    return next((match[0] for name in result.figures if (match := re.match(r"semisup_\d+pct", name))), result.protocol)


def _cost(options: Mapping[str, Any], images: "ClaimImages") -> float | None:
    if images.train is None or images.test is None:
        return None
    return float(_TRAINING_PASS * options["epochs"] * images.train * options["percent"] / 100 + images.test)


def _add_suite_options(parser: Parser) -> None:
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], metavar="S", help="seeds of fine-tuning (default: 0)"
    )


def _steps(task: "Task", args: argparse.Namespace, depends_on: Mapping[str, Any]) -> list[SuiteStep]:
    require(len(set(args.seeds)) == len(args.seeds), "--seeds names a seed twice")
    seeds = ["--seeds", *map(str, args.seeds)]
    return [
        SuiteStep(
            f"semisup_{percent}",
            f"{percent} % of the labels",
            ["semisup", "--percent", str(percent), *seeds],
            skipped=_too_few(task, percent),
            depends_on=depends_on,
        )
        for percent in (1, 10)
    ]


def _too_few(task: "Task", percent: int) -> str:
    images, classes = round(len(task.train) * percent / 100), len(task.train.classes or ())
    if images >= classes:
        return ""
    return f"{percent} % of {len(task.train):,} train images are {images}, fewer than {classes} classes"


_COMMAND = TaskCommand(_measure, _check, _work)
SEMISUP = Protocol(
    name="semisup",
    help="fine-tuning on 1 % or 10 % of the labels",
    add_options=_add_semisup,
    run=_COMMAND.run,
    open=_COMMAND.open,
    families=(
        Family("semisup_1pct", "Fine-tuning on 1 % of the labels", "1 % of labels"),
        Family("semisup_10pct", "Fine-tuning on 10 % of the labels", "10 % of labels"),
        Family("semisup_1pct_frozen", "Logistic regression on 1 % of the labels", "semisup_1pct_frozen"),
        Family("semisup_10pct_frozen", "Logistic regression on 10 % of the labels", "semisup_10pct_frozen"),
    ),
    state="--state",
    keeps_state=lambda args: not args.frozen,  # a logistic regression takes no time
    cost=_cost,
    result_fields=_result_fields,
    claim_fields=_claim_fields,
    label=_label,
    references=("untrained",),
    in_suite=InSuite(names=("semisup_1", "semisup_10"), steps=_steps, add_options=_add_suite_options),
    group="training",
    examples=(
        "semisup --ckpt runs/a --data photos --percent 10 --seeds 0 1 2",
        "semisup --ckpt runs/a --data photos --percent 1 --frozen",
    ),
)

FINETUNE = Protocol(
    name="finetune",
    help="fine-tuning on any share of the labels",
    add_options=_add_finetune,
    run=_COMMAND.run,
    open=_COMMAND.open,
    families=(Family("finetune", "Fine-tuning on a share of the labels", "finetune"),),
    state="--state",
    cost=lambda _options, _images: None,
    result_fields=_result_fields,
    group="training",
    examples=(
        "finetune --ckpt runs/a --data photos --fraction 0.25",
        "finetune --ckpt runs/a --data photos --settings paper --state unfinished",
    ),
)
