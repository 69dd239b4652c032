"""A protocol as one record: its options, its measurement, and what pages, claims and suites need to know of it.

Importing this module, or a module that makes such a record, loads no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from excb.errors import UserError, is_rank0
from excb.option_parser import given_flags

from .options import REFERENCES

if TYPE_CHECKING:
    import torch

    from excb.console import Reporter
    from excb.features.extraction import Extraction
    from excb.images.image_set import Images
    from excb.inference.paired import Paired
    from excb.networks.features import Kind
    from excb.results.beside import FileBeside
    from excb.results.result import ResultRecord

    from .published.claim import ClaimImages
    from .task import Task

COUNT_AS_WRONG = "counted as wrong"  # test images of classes that the train set lacks, in most protocols

Fields = dict[str, Any]  # what defines a protocol, field by field: figures compare where all are equal


@dataclass(frozen=True)
class Family:
    """The figures of one table of the leaderboard."""

    name: str  # in the table's key, such as "semisup_1pct"
    title: str  # the table's
    short: str  # what pages call it beside a figure


@dataclass(frozen=True)
class FigureKind:
    """The kind of a figure: what it measures."""

    family: str  # name of its `Family`
    metric: str  # its column: "top-1", "box AP50", "mAP",
    # settings of the protocol that the figure's name holds, such as {"k": 20}
    settings: tuple[tuple[str, Any], ...] = ()
    unit: str = "percent"  # of its values; those in percent must lie between 0 and 100
    higher_is_better: bool = True  # the direction in which it ranks


@dataclass(frozen=True)
class SuiteStep:
    """One evaluation of `excb-eval all`."""

    name: str  # of its result file
    title: str  # as people call it
    protocol: str  # its name
    options: Any  # the protocol's own; None where it does not apply
    skipped: str = ""  # why it does not apply; empty where it does
    # what its result depends on, beside its options; compared with that of a finished one
    depends_on: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """The work of an evaluation, for --dry-run."""

    features: "Mapping[str, Images]"  # sets whose features are computed once and kept
    kind: "Kind" = "pooled"  # of these features
    then: tuple[str, ...] = ()  # further work, a line each
    passes: float = 0.0  # images that pass through the network beside them, which nothing keeps; backward counts as two
    extract: "Callable[[Images], Extraction] | None" = None  # of these features, where they are of no `kind`
    making: "Mapping[str, float]" = field(default_factory=dict)  # seconds that a core takes to make an image, by set


@dataclass(frozen=True)
class Measurement:
    """The outcome of an evaluation.

    Attributes:
        result: its record.
        scored: the predictions or scores of every test image; None where there are none.
        show: prints the table.
        write: writes a result to FILE.json (or a folder) with the files beside it, and returns the files; all ranks
            call it.
    """

    result: "ResultRecord"
    scored: Any
    show: "Callable[[Reporter], None]"
    write: "Callable[[ResultRecord, Path], list[Path]]"

    def with_result(self, result: "ResultRecord") -> "Measurement":
        """The same with another record, such as one with references."""
        return replace(self, result=result)


class StoppedEvaluationError(UserError):
    """A signal stopped an evaluation that resumes; all ranks raise it, after a note that says so.

    Args:
        message: what happened, for callers from Python and suites.
        exit_code: of the command.
    """

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message, already_reported=not is_rank0())
        self.exit_code = exit_code


class ProtocolOptions:
    """Base of the options of one protocol: frozen dataclasses of `excb.options.option` fields."""

    def check(self, shared: Any) -> None:
        """Raise UserError where options contradict each other or `shared`; nothing is loaded yet."""

    def given(self, *names: str) -> list[str]:
        """The flags of those options that differ from their defaults."""
        return given_flags(self, *names)


@dataclass(frozen=True)
class NoOptions:
    """No options."""


@dataclass(frozen=True, kw_only=True)
class InSuite:
    """A protocol's part in `excb-eval all`."""

    names: tuple[str, ...]  # of its steps
    # its steps, given the task, `options` of `all`, and what every result on the task depends on
    steps: "Callable[[Task, Any, Mapping[str, Any]], Sequence[SuiteStep]]"
    options: type[Any] = NoOptions  # a dataclass of the options of `all` that this protocol needs


def counted_as_wrong(_own: Any) -> str:
    """The answer of most protocols to `Protocol.unknown`."""
    return COUNT_AS_WRONG


def scores_beside(label_sets: bool) -> "list[FileBeside]":
    """The files beside the results of most protocols: predictions for every image, and the picture of confusions."""
    from excb.results.beside import scored_files

    return scored_files(label_sets)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One protocol; `transfer/protocols.py` lists them all. `transfer/runner.py` runs it.

    Args:
        name: on the command line and in Python.
        help: one line without a full stop.
        families: of its figures, in the order of their tables.
        options: a dataclass of its own options.
        shared: a dataclass of the options that it shares with others: checkpoint, images, machine, references.
        open: loads and checks checkpoint and images; given shared options, own options, device, reporter.
        measure: the evaluation; given the task, own options, reporter. All ranks call it.
        work: the work of the evaluation; it refuses what the evaluation refuses. None: features of both sets.
        dry_run: answers --dry-run instead of `work`, as JSON where its last argument says so; returns the exit code.
        instead: does what its own options ask for instead of an evaluation, and returns the exit code; None for none.
        shares_task: whether it evaluates the labelled images of `excb-eval all`; otherwise it opens its own.
        unknown: what happens to test images of classes that train lacks, given its own options, for notes; empty where
            it is nothing.
        out: whether --out names a file or a folder.
        beside: the files that are written beside a result, given whether each image has a set of labels.
        kind_of: what a figure's name says, where it is not FAMILY_top1 or FAMILY_top5; None for any other name.
        labels: what the images need: a class each, boxes, masks, or queries with ground truth. With boxes a protocol
            resizes images by itself.
        headline: the figure that pages show first where a result has it; by default its first.
        state: the option that keeps an unfinished evaluation; empty where it starts anew.
        state_suffix: of the name of that file or folder in `all` and `watch`.
        keeps_state: whether an evaluation with these options takes `state`, where there is one.
        cost: forward passes of one image that a claim's options and images need, where a training pass counts as
            three; a sentence where passes say little; None where it is not known.
        result_fields: what defines a measured figure, given the result's settings as in JSON.
        claim_fields: the same of a published figure, given the claim's options.
        read_paired: reads what `excb-eval compare` needs beside a result's FILE.json, where figures are not means of
            scores of images; raises UserError. None where they are.
        label: what a submitted result is called, after its checkpoint.
        objection: why a result may not stand in a leaderboard; empty where it may.
        missing: why it cannot run on this machine; empty where it can.
        in_suite: its part in `excb-eval all`; None has none.
        group: under which the program's help lists it.
        examples: what to type after the program's name.
    """

    name: str
    help: str
    families: tuple[Family, ...]
    options: type[Any]
    shared: type[Any]
    open: "Callable[[Any, Any, torch.device, Reporter], Any]"
    measure: "Callable[[Any, Any, Reporter], Measurement]"
    work: "Callable[[Any, Any, Reporter], Work] | None" = None
    dry_run: "Callable[[Any, Any, Reporter, bool], int] | None" = None
    instead: "Callable[[Any, Any], int | None]" = lambda _options, _shell: None
    shares_task: bool = False
    unknown: Callable[[Any], str] = counted_as_wrong
    out: Literal["file", "folder"] = "file"
    beside: "Callable[[bool], Sequence[FileBeside]]" = scores_beside
    kind_of: Callable[[str], FigureKind | None] = lambda _figure: None
    labels: Literal["classes", "boxes", "masks", "queries"] = "classes"
    headline: str = ""
    state: str = ""
    state_suffix: str = ""
    keeps_state: Callable[[Any], bool] = lambda _options: True
    cost: "Callable[[Mapping[str, Any], ClaimImages], float | str | None]"
    result_fields: Callable[[Fields, FigureKind], Fields] = lambda settings, _kind: settings
    claim_fields: Callable[[Fields, FigureKind], Fields] = lambda options, _kind: options
    read_paired: "Callable[[Path], Paired] | None" = None
    label: "Callable[[ResultRecord], str]" = lambda result: result.protocol
    objection: "Callable[[ResultRecord], str]" = lambda _result: ""
    missing: Callable[[Any], str] = lambda _options: ""
    in_suite: InSuite | None = None
    group: str = ""
    examples: tuple[str, ...] = ()

    @cached_property
    def references(self) -> tuple[str, ...]:
        """The shared options that ask for references; results depend on them."""
        return tuple(each.name for each in fields(self.shared) if each.name in REFERENCES)

    def fields_of(self, settings: Fields, kind: FigureKind) -> Fields:
        """The fields that define a figure: `result_fields`, and the precision of the features where it is stated."""
        precision = {name: settings[name] for name in ("feature_precision",) if name in settings}
        return {**self.result_fields(settings, kind), **precision}

    def result_file(self, out: Path) -> Path:
        """The file that holds the result: what --out names, or of a protocol with a folder the file of its name there.

        A folder may be named as FOLDER.json.
        """
        if self.out == "file":
            return out
        return (out.with_suffix("") if out.suffix == ".json" else out) / f"{self.name}.json"

    def made(self, protocol: str) -> bool:
        """Whether a result's `protocol` is this one: it has this name, or one that begins with it (linear_fast)."""
        return protocol == self.name or protocol.startswith((f"{self.name}_", f"{self.name}-"))


def one_pass(_options: Mapping[str, Any], images: "ClaimImages") -> float | None:
    """The cost of protocols on frozen features: every image passes once."""
    return None if images.train is None or images.test is None else float(images.train + images.test)
