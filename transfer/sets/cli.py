"""`excb-eval sets`: its options, and what it does in each process."""

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from excb.cli import Command, Parser
from excb.console import Reporter
from excb.errors import UserError, is_rank0

from ..options import CKPT, add_out, add_pass_options
from ..parallel import in_parallel

if TYPE_CHECKING:
    import torch

    from ..every.suite import Outcome
    from ..old_protocol import SuiteStep
    from ..task import Task
    from .choosing import OpenSet
    from .heads import Options
    from .running import Contender, Sets


def _add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("sets", nargs="*", metavar="NAME", help="fine-grained, vtab-natural, single sets, or FILE.toml with your own")
    add("--ckpt", required=True, nargs="+", action="extend", metavar="PATH", help=f"{CKPT}; several: compared")
    add("--data", type=Path, metavar="DIR", help="folder with torchvision's data sets; nothing is downloaded there")
    add(
        "--set", action="append", default=[], metavar="NAME=DIR", help="a set of your own, as --data of knn; repeatable"
    )
    add("--only", nargs="+", default=[], metavar="NAME", help="only these sets")
    add("--shots", type=int, nargs="*", metavar="N", help="images of each class in an episode (default: 1 2 5 10)")
    add("--episodes", type=int, metavar="N", help="episodes of each number of shots (default: 100)")
    add("--k", type=int, metavar="K", help="neighbours that vote (default: 20)")
    add("--seed", type=int, default=0, metavar="S", help="draws the train images that choose a penalty (default: 0)")
    add("--own-preprocessing", action="store_true", help="keep each checkpoint's own resize and crop")
    add_pass_options(parser)
    add_out(parser, "DIR")


def _work(args: argparse.Namespace, device: "torch.device") -> int:
    from excb.distributed.collectives import run_on_rank0

    from ..data.torchvision_sets import sets_root
    from ..every import suite
    from .choosing import chosen, opened
    from .running import Sets

    reporter = Reporter(quiet=args.quiet or not is_rank0())
    options = _options(args)
    if args.out is None and not args.dry_run:
        raise UserError.on_all_ranks("name the folder for results with --out DIR")
    found, skipped = opened(chosen(args.sets, args.set, args.only), sets_root(args.data), reporter.note)
    _refuse_among(found, args.out)
    for name, why in skipped.items():
        reporter.warn(f"{name}: skipped, {why}")
    sets = Sets(found, skipped, options, args.network, reporter)
    contenders = _contenders(args, sets, device)
    if args.dry_run:
        if is_rank0():
            _show_plan(contenders, args, reporter)
        return 0
    outcomes = {}
    for one in contenders:
        reporter.note(f"{one.name}:")
        steps = [step for step in one.steps if not step.skipped]
        outcomes[one.name] = suite.evaluate(steps, args.out / one.folder, one.run, reporter, what="sets")
    run_on_rank0(lambda: _report(contenders, outcomes, sets, args, reporter))
    if failed := next((one for each in outcomes.values() for one in each if one.failed), None):
        raise UserError.on_all_ranks(f"{failed.step.title} could not be measured: {failed.failed}")
    return 0


def _options(args: argparse.Namespace) -> "Options":
    from .heads import EPISODES, SHOTS, K, Options

    shots = SHOTS if args.shots is None else tuple(sorted(set(args.shots)))
    options = Options(shots, EPISODES if args.episodes is None else args.episodes, args.k or K, args.seed)
    if options.episodes < 1 or options.k < 1 or any(n < 1 for n in shots) or args.k == 0:
        raise UserError.on_all_ranks("--shots, --episodes and --k must be at least 1")
    return options


def _refuse_among(found: "Sequence[OpenSet]", out: Path | None) -> None:
    """Refuse results among the images, which would be found as images of the next run."""
    from excb.distributed.collectives import all_succeed
    from excb.images.scanning import refuse_among

    for images in (images for each in found for images in (each.train, each.test)):
        if out is not None:
            all_succeed(partial(refuse_among, images, out))


def _contenders(args: argparse.Namespace, sets: "Sets", device: "torch.device") -> "list[Contender]":
    """The checkpoints, then every network untrained, then raw pixels."""
    from excb.distributed.workers import worker_count

    from ..every.several import Preparation, planned_checkpoints
    from ..task_command import prepared

    first = sets.opened[0]

    def open_task(checkpoint: str) -> "Task":
        return prepared(argparse.Namespace(**vars(args) | {"ckpt": checkpoint}), first.train, first.test, device)

    preparation = Preparation(open_task, own=args.own_preprocessing)
    twins: dict[str, Contender] = {}

    def plan(task: "Task") -> "list[SuiteStep]":
        steps = sets.of_task(task)
        if not task.is_untrained:
            twin = sets.untrained(task)
            twins.setdefault(twin.folder, twin)
        return steps

    entered = planned_checkpoints(args.ckpt, preparation, plan)
    if preparation.note:
        sets.reporter.warn(preparation.note)
    return [
        *(
            sets.checkpoint(one.name, one.folder, one.steps, partial(preparation.task, one.checkpoint))
            for one in entered
        ),
        *twins.values(),
        sets.pixels(device, worker_count(-1 if args.workers is None else args.workers)),
    ]


def _show_plan(contenders: "Sequence[Contender]", args: argparse.Namespace, reporter: Reporter) -> None:
    from ..every.suite import plan

    plans = {one.name: plan(one.steps, None if args.out is None else args.out / one.folder) for one in contenders}
    if args.json:
        reporter.answer(json.dumps({"plans": plans}, indent=2, ensure_ascii=False))
        return
    rows = [[name, each["name"], each["state"], each["why"]] for name, own in plans.items() for each in own]
    reporter.table("Plan", ["", "set", "state", "why"], rows)


def _report(
    contenders: "Sequence[Contender]",
    outcomes: "Mapping[str, Sequence[Outcome]]",
    sets: "Sets",
    args: argparse.Namespace,
    reporter: Reporter,
) -> None:
    """Write all tables, and print them."""
    from .gathering import EXPLANATION, gathered_tables, write_tables

    made = gathered_tables(contenders, outcomes, sets.opened)
    if not made:
        return
    metrics = {each.entry.name: each.entry.metric.title for each in sets.opened}
    plain, files = write_tables(made, metrics, sets.skipped, args.out)
    if args.json:
        reporter.answer(json.dumps(plain, indent=2))
    else:
        for each in made:
            reporter.table(each.table.title, each.table.headings, each.table.lines)
        reporter.answer(EXPLANATION)
        for name, why in sets.skipped.items() if args.quiet else ():
            reporter.answer(f"{name}: skipped, {why}")
    reporter.note(f"wrote {', '.join(map(str, files))}")


SETS = Command(
    "sets",
    "many sets of images: fine-grained, VTAB's natural ones or your own; mean, mean rank, tiers, n-shot episodes",
    _add_options,
    in_parallel(_work, out="folder"),
    group="everything, and against others",
    examples=(
        "sets fine-grained --ckpt runs/a timm:resnet50 --data ~/datasets --out sets",
        "sets --set birds=DIR --set cells=multilabel:DIR --ckpt runs/a --out sets",
    ),
)
