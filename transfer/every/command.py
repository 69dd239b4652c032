"""What `excb-eval all` does with its command line: the plan, the protocols, the report page."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from excb.console import Reporter
from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError, is_rank0
from excb.files.atomic import write_text

from ..detection.command import DEPTHS
from ..detection.core.settings import settings_for
from ..reporting.comparable import kind_of
from ..task import Task
from . import suite
from .suite import Outcome, Run

PAGE = "report.html"


def evaluate_all(
    chosen: argparse.Namespace,
    task: Task,
    run: Run,
    images: Callable[[Sequence[str]], dict[str, str]],
    reporter: Reporter,
) -> int:
    """Make what is asked for; all processes call this.

    Args:
        chosen: the command line.
        task: backbone and images.
        run: makes one protocol.
        images: fingerprints of the images that a command line of detection names.
        reporter: where to talk.

    Raises:
        UserError: --out is missing, a protocol could not be measured, or the report not be written.
    """
    if chosen.out is None and not chosen.dry_run:
        raise UserError.on_all_ranks("name the folder for results and report with --out DIR")
    settings_for(chosen.schedule)
    detection = None
    if chosen.coco is not None and task.backbone.entry.architecture.name in DEPTHS:
        words = ["--data", str(chosen.coco), "--schedule", chosen.schedule, "--engine", chosen.engine]
        command = ["detection", *words]
        detection = (words, images(command))
    found = suite.steps(
        task,
        linear=chosen.linear,
        seeds=chosen.seeds,
        network=chosen.network,
        detection=detection,
        only=chosen.only,
    )
    if chosen.dry_run:
        if is_rank0():
            _show(suite.plan(found, chosen.out), reporter, as_json=chosen.json)
        return 0
    outcomes = suite.evaluate(found, chosen.out, run, reporter)
    run_on_rank0(lambda: tell(outcomes, chosen.out, reporter, as_json=chosen.json))
    if failed := [one for one in outcomes if one.failed]:
        raise UserError.on_all_ranks(f"{failed[0].step.title} could not be measured: {failed[0].failed}")
    return 0


def _show(plan: Sequence[dict[str, object]], reporter: Reporter, *, as_json: bool) -> None:
    if as_json:
        reporter.answer(json.dumps({"plan": plan}, indent=2, ensure_ascii=False))
        return
    rows = [
        [str(each["name"]), " ".join(_words(each["command"])), str(each["state"]), str(each["why"])] for each in plan
    ]
    reporter.table("Plan", ["protocol", "command", "state", "why"], rows)


def _words(command: object) -> Sequence[str]:
    return command if isinstance(command, list) else []


def tell(outcomes: Sequence[Outcome], folder: Path, reporter: Reporter, *, as_json: bool) -> None:
    """Write the report page, and print every figure.

    Raises:
        UserError: the page cannot be written.
    """
    measured = [one for one in outcomes if one.result is not None]
    if measured:
        from .page import render

        write_text(render(outcomes), folder / PAGE)
        reporter.note(f"wrote {folder / PAGE}")
    if as_json:
        reporter.answer(json.dumps(suite.to_dict(outcomes), indent=2, ensure_ascii=False))
        return
    rows = [
        [figure, f"{value:.2f}", _interval(one.result.intervals.get(figure)), one.step.title]
        for one in measured
        if one.result is not None
        for figure, value in one.result.figures.items()
        if kind_of(figure) is not None  # detection has no intervals
    ]
    reporter.table(f"Results in {folder}", ["figure", "percent", "95 % interval", "protocol"], rows)


def _interval(found: tuple[float, float] | None) -> str:
    return "" if found is None else "{:.1f} to {:.1f}".format(*found)
