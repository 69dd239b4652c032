"""A protocol as one record: what the commands, the leaderboard, `reproduce` and `all` need to know of it.

Importing this module, or a module that makes such a record, loads no torch: `--help` reads all of them.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from typing import Protocol as Interface

from excb.cli import Command, Parser

from .protocol import Family, Fields, FigureKind

if TYPE_CHECKING:
    import torch

    from excb.console import Reporter
    from excb.results.result import Result

    from .inference.paired import Paired
    from .published.claim import ClaimImages
    from .task import Task

# A result, and what writes it to FILE.json with the files beside it; the files are returned.
Measured = tuple["Result", Callable[["Result", Path], list[Path]]]


@dataclass(frozen=True)
class Evaluation:
    """A protocol with its checkpoint and images, checked and ready to run."""

    data: Mapping[str, Any]  # the images, as in `Result.data`
    measure: Callable[[bool], Measured]  # runs it and returns what it measured; prints a table if asked to


class OpenEvaluation(Interface):
    """Loads and checks what a command line names; all ranks call this together."""

    def __call__(
        self,
        args: argparse.Namespace,
        device: "torch.device",
        reporter: "Reporter",
        *,
        task: "Task | None" = None,
        results: Path | None = None,
    ) -> Evaluation:
        """The evaluation.

        Args:
            args: the protocol's own options.
            device: where to compute.
            reporter: prints notes, progress and tables.
            task: backbone and images that are loaded already, for protocols that take a `Task`.
            results: the folder that results will be written to; it may not lie among the images.
        """


@dataclass(frozen=True)
class SuiteStep:
    """One evaluation of `excb-eval all`."""

    name: str  # of its result file
    title: str  # as people call it
    command: list[str]  # of `excb-eval`, without checkpoint and images
    skipped: str = ""  # why it does not apply; empty where it does
    # what its result depends on, beside the command; compared with that of a finished one
    depends_on: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class InSuite:
    """A protocol's part in `excb-eval all`."""

    names: tuple[str, ...]  # of its steps
    # its steps, given the task, the options of `all`, and what every result on the task depends on
    steps: "Callable[[Task, argparse.Namespace, Mapping[str, Any]], Sequence[SuiteStep]]"
    add_options: Callable[[Parser], None] = lambda _parser: None  # adds the options of `all` that this protocol needs


@dataclass(frozen=True, kw_only=True)
class Protocol(Command):
    """One protocol; `transfer/protocols.py` lists them all.

    Args:
        families: of its figures, in the order of their tables.
        kind_of: what a figure's name says, where it is not FAMILY_top1 or FAMILY_top5; None for any other name.
        open: see `OpenEvaluation`.
        labels: what the images need: a class each, boxes, masks, or queries with ground truth. With boxes a protocol
            resizes images by itself.
        headline: the figure that pages show first where a result has it; by default its first.
        state: the option that keeps an unfinished evaluation; empty where it starts anew.
        state_suffix: what `all` and `watch` append to the name of that file or folder.
        keeps_state: whether an evaluation with these options takes `state`, where there is one.
        cost: forward passes of one image that a claim's options and images need, where a training pass counts as
            three; a sentence where passes say little; None where it is not known.
        result_fields: what defines a measured figure, given the result's settings as in JSON.
        claim_fields: the same of a published figure, given the claim's options.
        read_paired: reads what `excb-eval compare` needs beside a result's FILE.json, where figures are no means of
            scores of images; raises UserError. None where they are.
        references: options of `all` that this protocol takes, too, and that its results depend on.
        label: what a submitted result is called, after its checkpoint.
        objection: why a result may not stand in a leaderboard; empty where it may.
        missing: why the command cannot run on this machine; empty where it can.
        in_suite: its part in `excb-eval all`; None has none.
    """

    families: tuple[Family, ...]
    open: OpenEvaluation
    kind_of: Callable[[str], FigureKind | None] = lambda _figure: None
    labels: Literal["classes", "boxes", "masks", "queries"] = "classes"
    headline: str = ""
    state: str = ""
    state_suffix: str = ""
    keeps_state: Callable[[argparse.Namespace], bool] = lambda _args: True
    cost: "Callable[[Mapping[str, Any], ClaimImages], float | str | None]"
    result_fields: Callable[[Fields, FigureKind], Fields] = lambda settings, _kind: settings
    claim_fields: Callable[[Fields, FigureKind], Fields] = lambda options, _kind: options
    read_paired: "Callable[[Path], Paired] | None" = None
    references: tuple[str, ...] = ()
    label: "Callable[[Result], str]" = lambda result: result.protocol
    objection: "Callable[[Result], str]" = lambda _result: ""
    missing: Callable[[argparse.Namespace], str] = lambda _args: ""
    in_suite: InSuite | None = None

    def fields_of(self, settings: Fields, kind: FigureKind) -> Fields:
        """What defines a measured figure: `result_fields`, and the precision of the features where it is stated."""
        precision = {name: settings[name] for name in ("feature_precision",) if name in settings}
        return {**self.result_fields(settings, kind), **precision}

    def made(self, protocol: str) -> bool:
        """Whether a result's `protocol` is this one: it has this name, or one that begins with it (linear_fast)."""
        return protocol == self.name or protocol.startswith((f"{self.name}_", f"{self.name}-"))


def adapted(new: Any) -> Protocol:
    """A record of the new form for those who read the old one. TODO(38): goes with this file."""
    import dataclasses

    from excb.option_parser import add_options, of_arguments, to_words

    from . import runner

    def open_task(args: Any, device: Any, reporter: Any, *, task: Any = None, results: Any = None) -> Evaluation:
        evaluation = runner.evaluation_of(new, args)
        if new.state and not new.keeps_state(evaluation.own):  # `all` and `reproduce` do not ask before they name one
            own = dataclasses.replace(evaluation.own, **{new.state: None})
            evaluation = dataclasses.replace(evaluation, own=own)
        if task is None or not new.shares_task:
            task = evaluation.open(device, reporter, results=results)
        else:
            evaluation.check()

        def measure(table: bool) -> Measured:
            made = evaluation.measure(task, reporter)
            if table:
                made.show(reporter)
            return made.result, made.write

        return Evaluation(task.describe()["data"], measure)

    def steps(task: Any, args: Any, depends_on: Any) -> list[SuiteStep]:
        chosen = of_arguments(new.in_suite.options, args)
        names = [field.name for field in dataclasses.fields(new.options)]
        return [
            SuiteStep(
                step.name, step.title, [step.protocol, *to_words(step.options, names)], step.skipped, step.depends_on
            )
            for step in new.in_suite.steps(task, chosen, depends_on)
        ]

    same = (
        *("name", "help", "families", "kind_of", "labels", "headline", "state_suffix", "cost", "result_fields"),
        *("claim_fields", "read_paired", "label", "objection", "references", "group", "examples"),
    )
    command = runner.command(new)
    return Protocol(
        **{name: getattr(new, name) for name in same},
        add_options=command.add_options,
        run=command.run,
        open=open_task,
        state=f"--{new.state}" if new.state else "",
        keeps_state=lambda args: new.keeps_state(of_arguments(new.options, args)),
        missing=lambda args: new.missing(of_arguments(new.options, args)),
        in_suite=None
        if new.in_suite is None
        else InSuite(
            names=new.in_suite.names,
            steps=steps,
            add_options=lambda parser: add_options(parser, new.in_suite.options),
        ),
    )
