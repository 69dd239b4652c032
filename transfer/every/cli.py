"""`excb-eval all`: its options, and what it does in each process."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.cli import Command, Parser
from excb.console import Reporter
from excb.errors import UserError, is_rank0

from ..options import add_task_options
from ..parallel import in_parallel
from ..protocols import PROTOCOLS, kind_of, parse
from ..task_command import task_of

if TYPE_CHECKING:
    import torch

    from .suite import Outcome

PAGE = "report.html"


def _add_options(parser: Parser) -> None:
    add_task_options(parser, result="DIR")
    suites = [protocol.in_suite for protocol in PROTOCOLS if protocol.in_suite is not None]
    names = ", ".join(name for suite in suites for name in suite.names)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"of {names}")
    for suite in suites:
        suite.add_options(parser)


def _work(args: argparse.Namespace, device: "torch.device") -> int:
    from excb.distributed.collectives import run_on_rank0

    from . import suite

    reporter = Reporter(quiet=args.quiet or not is_rank0())
    task = task_of(args, device, reporter, results=args.out)
    if args.out is None and not args.dry_run:
        raise UserError.on_all_ranks("name the folder for results and report with --out DIR")
    steps = suite.steps(task, args)
    if args.dry_run:
        if is_rank0():
            _show(suite.plan(steps, args.out), reporter, as_json=args.json)
        return 0
    shared = ["--ckpt", args.ckpt, "--network", args.network, "--json"]
    shared += [] if args.workers is None else ["--workers", str(args.workers)]

    def run(command: Sequence[str], file: Path) -> list[Path]:
        protocol, options = parse([*command, *shared])
        result, write = protocol.open(options, device, reporter, task=task).measure(False)
        return write(result, file)

    outcomes = suite.evaluate(steps, args.out, run, reporter)
    run_on_rank0(lambda: report(outcomes, args.out, reporter, as_json=args.json))
    if args.quiet and not args.json and is_rank0():
        for note in task.unknown_notes():
            reporter.answer(note)
    if failed := [one for one in outcomes if one.failed]:
        raise UserError.on_all_ranks(f"{failed[0].step.title} could not be measured: {failed[0].failed}")
    return 0


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
    from excb.files.atomic import write_text

    from .page import render
    from .suite import to_dict

    measured = [(one, one.result) for one in outcomes if one.result is not None]
    if measured:
        write_text(render(outcomes), folder / PAGE)
        reporter.note(f"wrote {folder / PAGE}")
    if as_json:
        reporter.answer(json.dumps(to_dict(outcomes), indent=2, ensure_ascii=False))
        return
    rows = [
        [figure, f"{value:.2f}", _interval(result.intervals.get(figure)), one.step.title]
        for one, result in measured
        for figure, value in result.figures.items()
        if kind_of(figure) is not None
    ]
    reporter.table(f"Results in {folder}", ["figure", "percent", "95 % interval", "protocol"], rows)


def _interval(ends: tuple[float, float] | None) -> str:
    """Detection has no intervals."""
    return "" if ends is None else "{:.1f} to {:.1f}".format(*ends)


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
