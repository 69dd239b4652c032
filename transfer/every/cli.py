"""`excb-eval all`: its options, and what it does in each process."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.cli import Command
from excb.console import Reporter
from excb.errors import UserError, is_rank0
from excb.results.result import interval_text

from ..opening import labelled_images, task_on, warn_of_unknown
from ..options import PassOptions
from ..protocols import kind_of
from ..runner import refuse_results_among
from ..shell import Shell, shell_command
from .options import SuiteOptions, options_of, suite_options

if TYPE_CHECKING:
    import torch

    from ..task import Task
    from .suite import PlannedStep, RunStep, StepOutcome

PAGE = "report.html"


def _work(given: list[Any], shell: Shell, device: "torch.device") -> int:
    from excb.distributed.collectives import run_on_rank0

    from . import suite

    options: SuiteOptions = given[0]
    reporter = shell.reporter
    _check(options, shell)
    train, test = labelled_images(options, reporter)
    if shell.out is not None:
        refuse_results_among((train, test), shell.out)

    def open_task(checkpoint: str) -> "Task":
        return task_on(replace(options_of(options, PassOptions), ckpt=checkpoint), train, test, device)

    def run(checkpoint: str, task: "Task") -> "RunStep":
        return partial(_run, checkpoint=checkpoint, task=task, reporter=reporter, overwrite=shell.overwrite)

    if len(options.ckpt) > 1:
        return _several(options, shell, open_task, run)
    task = open_task(options.ckpt[0])
    warn_of_unknown(task, reporter)
    steps = suite.steps(task, options)
    if shell.out is not None and not shell.overwrite:
        run_on_rank0(partial(_refuse_others, steps, shell.out))
    if shell.dry_run:
        if is_rank0():
            _show(suite.plan_suite(steps, shell.out), reporter, as_json=shell.json)
        return 0
    assert shell.out is not None
    outcomes = suite.run_suite(steps, shell.out, run(options.ckpt[0], task), reporter)
    run_on_rank0(partial(write_report, outcomes, shell.out, reporter, as_json=shell.json))
    if shell.quiet and shell.prints:
        for note in task.unknown_notes():
            reporter.answer(note)
    _raise_failure(outcomes)
    return 0


def _check(options: SuiteOptions, shell: Shell) -> None:
    """Refuse options without a use, and a missing folder, before images are listed."""
    from excb.distributed.collectives import all_succeed

    if shell.out is None and not shell.dry_run:
        raise UserError.on_all_ranks("name the folder for results and report with --out DIR")
    all_succeed(options.check)


def _refuse_others(steps: "Sequence[PlannedStep]", folder: Path) -> None:
    """Refuse a folder for one checkpoint that has other results, or another page."""
    from excb.results.beside import page_beside

    from . import suite

    suite.refuse_other_results(steps, folder)
    suite.refuse_other_tables(folder, [page_beside(PAGE, "all")])


def _several(
    options: SuiteOptions,
    shell: Shell,
    open_task: "Callable[[str], Task]",
    run: "Callable[[str, Task], RunStep]",
) -> int:
    from excb.distributed.collectives import run_on_rank0

    from . import several, suite

    reporter, out = shell.reporter, shell.out
    preparation = several.Preparation(open_task, own=options.own_preprocessing)
    entered = several.planned_checkpoints(options.ckpt, preparation, lambda task: suite.steps(task, options))
    if preparation.note:
        reporter.warn(preparation.note)
    if out is not None and not shell.overwrite:
        for one in entered:
            run_on_rank0(partial(_refuse_others, one.steps, out / one.folder))
            run_on_rank0(partial(suite.refuse_other_tables, out / one.folder, several.files_of_one()))
        run_on_rank0(partial(suite.refuse_other_tables, out, several.files_of_comparison()))
    if shell.dry_run:
        if is_rank0():
            plans = {
                one.name: suite.plan_suite(one.steps, None if out is None else out / one.folder) for one in entered
            }
            _show_several(plans, reporter, as_json=shell.json)
        return 0
    assert out is not None
    comparison, outcomes = several.evaluate_checkpoints(
        entered,
        preparation,
        lambda planned, task: run(planned.checkpoint, task),
        lambda made, folder: write_page(made, folder, reporter),
        folder=out,
        reporter=reporter,
    )

    def answer() -> None:
        if comparison is not None:
            files = several.write_comparison(comparison, out, report=PAGE)
            reporter.note(f"wrote {', '.join(map(str, files))}")
        if shell.json:
            reporter.answer(json.dumps(several.comparison_values(comparison, outcomes), indent=2, ensure_ascii=False))
        elif comparison is not None:
            several.show_comparison(comparison, reporter)

    run_on_rank0(answer)
    _raise_failure([one for made in outcomes.values() for one in made])
    return 0


def _run(
    step: "PlannedStep", file: Path, *, checkpoint: str, task: "Task", reporter: Reporter, overwrite: bool
) -> list[Path]:
    """Run one step, as `suite.RunStep`."""
    assert step.evaluation is not None
    evaluation = replace(step.evaluation, shared=replace(step.evaluation.shared, ckpt=checkpoint))
    shared = evaluation.protocol.shares_task
    own = task if shared else evaluation.open(task.device, reporter, out=file, overwrite=overwrite)
    made = evaluation.measure(own, reporter)
    return made.write(made.result, file)


def _raise_failure(outcomes: "Sequence[StepOutcome]") -> None:
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


def write_report(outcomes: "Sequence[StepOutcome]", folder: Path, reporter: Reporter, *, as_json: bool) -> None:
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


def write_page(outcomes: "Sequence[StepOutcome]", folder: Path, reporter: Reporter) -> None:
    """Write the report page of one checkpoint, if anything was measured.

    Raises:
        UserError: it cannot be written.
    """
    from excb.files.atomic import write_text

    from .page import render_report

    if any(one.result is not None for one in outcomes):
        write_text(render_report(outcomes), folder / PAGE)
        reporter.note(f"wrote {folder / PAGE}")


def all_command() -> Command:
    """The command, with the options that protocols add."""
    return shell_command(
        "all",
        "every protocol that applies, resumable, with one report page",
        (suite_options(),),
        _work,
        out="folder",
        metavar="DIR",
        overwrite=True,
        group="everything, and against others",
        examples=(
            "all --ckpt runs/a --data photos --out report",
            "all --ckpt runs/a --data photos --only knn --dry-run",
        ),
    )
