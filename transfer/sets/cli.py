"""`excb-eval sets`: its options, and what it does in each process."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from excb.errors import UserError, is_rank0

from ..every.options import options_of
from ..opening import task_on
from ..options import PassOptions
from ..runner import refuse_results_among
from ..shell import Shell, shell_command
from .options import SetsOptions

if TYPE_CHECKING:
    import torch

    from ..every.suite import PlannedStep, StepOutcome
    from ..task import Task
    from .running import Candidate, Sets


def _work(given: list[Any], shell: Shell, device: "torch.device") -> int:
    from excb.distributed.collectives import all_succeed, run_on_rank0
    from excb.sources.torchvision_sets import sets_root

    from ..every import suite
    from .choosing import open_sets, sets_named
    from .gathering import files_of_tables
    from .heads import Options
    from .running import Sets

    options: SetsOptions = given[0]
    reporter, out = shell.reporter, shell.out
    all_succeed(options.check)
    if out is None and not shell.dry_run:
        raise UserError.on_all_ranks("name the folder for results with --out DIR")
    entries = sets_named(options.sets, options.own_sets, options.only)
    found, skipped = open_sets(entries, sets_root(options.data), reporter.note)
    if out is not None:
        refuse_results_among((images for each in found for images in (each.train, each.test)), out)
    for name, why in skipped.items():
        reporter.warn(f"{name}: skipped, {why}")
    heads = Options(tuple(sorted(set(options.shots))), options.episodes, options.k, seed=options.seed)
    sets = Sets(found, skipped, heads, options.network, reporter, options.range, options.channels)
    candidates = _candidates(options, sets, device)
    if out is not None and not shell.overwrite:
        for one in candidates:
            run_on_rank0(partial(suite.refuse_other_results, one.steps, out / one.folder))
        run_on_rank0(partial(suite.refuse_other_tables, out, files_of_tables()))
    if shell.dry_run:
        if is_rank0():
            _show_plan(candidates, shell)
        return 0
    assert out is not None
    outcomes = {}
    for one in candidates:
        reporter.note(f"{one.name}:")
        steps = [step for step in one.steps if not step.skipped]
        outcomes[one.name] = suite.run_suite(steps, out / one.folder, one.run, reporter, what="sets")
    run_on_rank0(lambda: _report(candidates, outcomes, sets, shell))
    if failed := next((one for each in outcomes.values() for one in each if one.failed), None):
        raise UserError.on_all_ranks(f"{failed.step.title} could not be measured: {failed.failed}")
    return 0


def _candidates(options: SetsOptions, sets: "Sets", device: "torch.device") -> "list[Candidate]":
    """The checkpoints, then every network untrained, then raw pixels."""
    from excb.distributed.workers import worker_count

    from ..every.several import Preparation, planned_checkpoints

    first = sets.opened[0]

    def open_task(checkpoint: str) -> "Task":
        shared = replace(options_of(options, PassOptions), ckpt=checkpoint, range=sets.range_of(first))
        return task_on(shared, first.train, first.test, device)

    preparation = Preparation(open_task, own=options.own_preprocessing)
    twins: dict[str, Candidate] = {}

    def plan(task: "Task") -> "list[PlannedStep]":
        steps = sets.of_task(task)
        if not task.is_untrained:
            twin = sets.untrained(task)
            twins.setdefault(twin.folder, twin)
        return steps

    entered = planned_checkpoints(options.ckpt, preparation, plan)
    if preparation.note:
        sets.reporter.warn(preparation.note)
    return [
        *(
            sets.checkpoint(one.name, one.folder, one.steps, partial(preparation.task, one.checkpoint))
            for one in entered
        ),
        *twins.values(),
        sets.pixels(device, worker_count(-1 if options.workers is None else options.workers)),
    ]


def _show_plan(candidates: "Sequence[Candidate]", shell: Shell) -> None:
    from ..every.suite import plan_suite

    reporter, out = shell.reporter, shell.out

    plans = {one.name: plan_suite(one.steps, None if out is None else out / one.folder) for one in candidates}
    if shell.json:
        reporter.answer(json.dumps({"plans": plans}, indent=2, ensure_ascii=False))
        return
    rows = [[name, each["name"], each["state"], each["why"]] for name, own in plans.items() for each in own]
    reporter.table("Plan", ["", "set", "state", "why"], rows)


def _report(
    candidates: "Sequence[Candidate]",
    outcomes: "Mapping[str, Sequence[StepOutcome]]",
    sets: "Sets",
    shell: Shell,
) -> None:
    """Write all tables, and print them."""
    from .gathering import EXPLANATION, gathered_tables, notes_of, write_tables

    reporter, out = shell.reporter, shell.out
    assert out is not None
    made = gathered_tables(candidates, outcomes, sets.opened)
    if not made:
        return
    metrics = {each.entry.name: each.entry.metric.title for each in sets.opened}
    notes = notes_of(outcomes)
    plain, files = write_tables(made, metrics, sets.skipped, out, notes=notes)
    if shell.json:
        reporter.answer(json.dumps(plain, indent=2))
    else:
        for each in made:
            reporter.table(each.table.title, each.table.headings, each.table.lines)
        reporter.answer(EXPLANATION)
        for note in notes:
            reporter.note(note)
        for name, why in sets.skipped.items() if shell.quiet else ():
            reporter.answer(f"{name}: skipped, {why}")
    reporter.note(f"wrote {', '.join(map(str, files))}")


SETS = shell_command(
    "sets",
    "many sets of images: fine-grained, VTAB's natural ones or your own; mean, mean rank, tiers, n-shot episodes",
    (SetsOptions,),
    _work,
    out="folder",
    metavar="DIR",
    overwrite=True,
    group="everything, and against others",
    examples=(
        "sets fine-grained --ckpt runs/a timm:resnet50 --data ~/datasets --out sets",
        "sets --set birds=DIR --set cells=multilabel:DIR --ckpt runs/a --out sets",
    ),
)
