"""`excb-eval all`: its options, and what it does in each process."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.cli import Command, Parser
from excb.console import Reporter
from excb.errors import UserError, is_rank0
from excb.results.result import interval_text

from ..options import CKPT, add_baselines, add_data_options, add_out, add_untrained
from ..parallel import in_parallel
from ..protocols import PROTOCOLS, kind_of, parse
from ..task_command import images_of, prepared, warn_of_unknown

if TYPE_CHECKING:
    import torch

    from ..task import Task
    from .suite import Outcome, RunStep

PAGE = "report.html"


def _add_options(parser: Parser) -> None:
    parser.add_argument(
        "--ckpt", required=True, nargs="+", action="extend", metavar="PATH", help=f"{CKPT}; several: compared"
    )
    add_data_options(parser)
    add_untrained(parser)
    add_baselines(parser)
    parser.add_argument(
        "--own-preprocessing",
        action="store_true",
        help="with several checkpoints, keep each one's own resize and crop (default: those of the first, for all)",
    )
    add_out(parser, "DIR")
    suites = [protocol.in_suite for protocol in PROTOCOLS if protocol.in_suite is not None]
    names = ", ".join(name for suite in suites for name in suite.names)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"of {names}")
    for suite in suites:
        suite.add_options(parser)


def _work(args: argparse.Namespace, device: "torch.device") -> int:
    from excb.distributed.collectives import run_on_rank0

    from . import suite

    reporter = Reporter(quiet=args.quiet or not is_rank0())
    train, test = images_of(args, reporter, results=args.out)
    if args.out is None and not args.dry_run:
        raise UserError.on_all_ranks("name the folder for results and report with --out DIR")

    def open_task(checkpoint: str) -> "Task":
        return prepared(argparse.Namespace(**vars(args) | {"ckpt": checkpoint}), train, test, device)

    def run(checkpoint: str, task: "Task") -> "RunStep":
        return partial(_run, args=args, checkpoint=checkpoint, task=task, reporter=reporter)

    if len(args.ckpt) > 1:
        return _several(args, open_task, run, reporter)
    task = open_task(args.ckpt[0])
    warn_of_unknown(task, reporter)
    steps = suite.steps(task, args)
    if args.dry_run:
        if is_rank0():
            _show(suite.plan(steps, args.out), reporter, as_json=args.json)
        return 0
    outcomes = suite.evaluate(steps, args.out, run(args.ckpt[0], task), reporter)
    run_on_rank0(lambda: report(outcomes, args.out, reporter, as_json=args.json))
    if args.quiet and not args.json and is_rank0():
        for note in task.unknown_notes():
            reporter.answer(note)
    _raise_failure(outcomes)
    return 0


def _several(
    args: argparse.Namespace,
    open_task: "Callable[[str], Task]",
    run: "Callable[[str, Task], RunStep]",
    reporter: Reporter,
) -> int:
    from excb.distributed.collectives import run_on_rank0

    from . import several, suite

    preparation = several.Preparation(open_task, own=args.own_preprocessing)
    entered = several.planned_checkpoints(args.ckpt, preparation, lambda task: suite.steps(task, args))
    if preparation.note:
        reporter.warn(preparation.note)
    if args.dry_run:
        if is_rank0():
            plans = {
                one.name: suite.plan(one.steps, None if args.out is None else args.out / one.folder) for one in entered
            }
            _show_several(plans, reporter, as_json=args.json)
        return 0
    comparison, outcomes = several.evaluate(
        entered,
        preparation,
        lambda planned, task: run(planned.checkpoint, task),
        lambda made, folder: write_page(made, folder, reporter),
        folder=args.out,
        reporter=reporter,
    )

    def tell() -> None:
        if comparison is not None:
            files = several.write_comparison(comparison, args.out, report=PAGE)
            reporter.note(f"wrote {', '.join(map(str, files))}")
        if args.json:
            reporter.answer(json.dumps(several.to_dict(comparison, outcomes), indent=2, ensure_ascii=False))
        elif comparison is not None:
            several.show_comparison(comparison, reporter)

    run_on_rank0(tell)
    _raise_failure([one for made in outcomes.values() for one in made])
    return 0


def _run(
    command: Sequence[str], file: Path, *, args: argparse.Namespace, checkpoint: str, task: "Task", reporter: Reporter
) -> list[Path]:
    """Run one step, as `suite.RunStep`."""
    shared = ["--ckpt", checkpoint, "--network", args.network, "--json"]
    shared += [] if args.workers is None else ["--workers", str(args.workers)]
    protocol, options = parse([*command, *shared])
    for name in protocol.references:
        setattr(options, name, getattr(args, name))
    result, write = protocol.open(options, task.device, reporter, task=task).measure(False)
    return write(result, file)


def _raise_failure(outcomes: "Sequence[Outcome]") -> None:
    if failed := [one for one in outcomes if one.failed]:
        raise UserError.on_all_ranks(f"{failed[0].step.title} could not be measured: {failed[0].failed}")


def _show_several(plans: Mapping[str, Sequence[Mapping[str, Any]]], reporter: Reporter, *, as_json: bool) -> None:
    if as_json:
        reporter.answer(json.dumps({"plans": plans}, indent=2, ensure_ascii=False))
        return
    rows = [
        [name, each["name"], " ".join(each["command"]), each["state"], each["why"]]
        for name, plan in plans.items()
        for each in plan
    ]
    reporter.table("Plan", ["checkpoint", "protocol", "command", "state", "why"], rows)


def _show(plan: Sequence[Mapping[str, Any]], reporter: Reporter, *, as_json: bool) -> None:
    if as_json:
        reporter.answer(json.dumps({"plan": plan}, indent=2, ensure_ascii=False))
        return
    rows = [[each["name"], " ".join(each["command"]), each["state"], each["why"]] for each in plan]
    reporter.table("Plan", ["protocol", "command", "state", "why"], rows)


def report(outcomes: "Sequence[Outcome]", folder: Path, reporter: Reporter, *, as_json: bool) -> None:
    """Write the report page, and print every figure.

    Raises:
        UserError: the page cannot be written.
    """
    from .suite import to_dict

    measured = [(one, one.result) for one in outcomes if one.result is not None]
    write_page(outcomes, folder, reporter)
    if as_json:
        reporter.answer(json.dumps(to_dict(outcomes), indent=2, ensure_ascii=False))
        return
    rows = [
        [figure, f"{value:.2f}", interval_text(result.intervals.get(figure)), one.step.title]
        for one, result in measured
        for figure, value in result.figures.items()
        if kind_of(figure) is not None
    ]
    reporter.table(f"Results in {folder}", ["figure", "percent", "95 % interval", "protocol"], rows)


def write_page(outcomes: "Sequence[Outcome]", folder: Path, reporter: Reporter) -> None:
    """Write the report page of one checkpoint, if anything was measured.

    Raises:
        UserError: it cannot be written.
    """
    from excb.files.atomic import write_text

    from .page import render_report

    if any(one.result is not None for one in outcomes):
        write_text(render_report(outcomes), folder / PAGE)
        reporter.note(f"wrote {folder / PAGE}")


ALL = Command(
    "all",
    "every protocol that applies, resumable, with one report page",
    _add_options,
    in_parallel(_work, out="folder"),
    group="everything, and against others",
    examples=(
        "all --ckpt runs/a --data photos --out report",
        "all --ckpt runs/a --data photos --only knn --dry-run",
    ),
)
