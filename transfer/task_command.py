"""Protocols on a `Task`, labelled train and test images: from options to a result."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.console import Reporter, duration
from excb.errors import UserError, is_rank0

from .old_protocol import Evaluation, Measured
from .options import BASELINES
from .parallel import in_parallel

if TYPE_CHECKING:
    import torch

    from excb.features.extraction import Extraction
    from excb.images.image_set import Images
    from excb.networks.features import Kind
    from excb.results.result import Result

    from .reporting.report import Packed
    from .task import Task

Measure = Callable[[argparse.Namespace, "Task", Reporter, bool], "tuple[Result, Packed]"]


@dataclass(frozen=True)
class Work:
    """What an evaluation computes, for --dry-run."""

    features: "Mapping[str, Images]"  # sets whose features are computed once and kept
    kind: "Kind" = "pooled"  # of these features
    then: tuple[str, ...] = ()  # what is computed beside them, a line each
    passes: float = 0.0  # images that pass through the network beside them, which nothing keeps; backward counts as two
    extract: "Callable[[Images], Extraction] | None" = None  # of these features, where they are of no `kind`


def _features_of_both(_args: argparse.Namespace, task: "Task", _reporter: Reporter) -> Work:
    return Work({"train": task.train, "test": task.test})


@dataclass(frozen=True)
class TaskCommand:
    """How a protocol on a `Task` runs as a command, and for `reproduce` and `all`."""

    measure: Measure  # the evaluation: options, task, where to talk, and whether to print its table
    # refuses options that contradict each other, before anything is loaded
    check: Callable[[argparse.Namespace], None] = lambda _args: None
    # what the evaluation will compute; it refuses what the evaluation refuses before any work
    work: "Callable[[argparse.Namespace, Task, Reporter], Work]" = _features_of_both
    # what happens to test images of classes that train lacks, for the warning about them
    unknown: str = "count as wrong"
    # what writes a result, given what was said of every image; by default `reporting.report.ScoredFiles`
    files: "Callable[[Any], Callable[[Result, Path], list[Path]]] | None" = None
    multilabel: bool = False  # whether it takes images with a set of labels each

    @property
    def run(self) -> Callable[[argparse.Namespace], int]:
        """The `run` of the protocol's record."""
        return in_parallel(self._work)

    def _work(self, args: argparse.Namespace, device: "torch.device") -> int:
        reporter = Reporter(quiet=args.quiet or not is_rank0())
        self.check(args)
        results = None if args.out is None else args.out.parent
        task = self._task(args, device, reporter, results=results)
        if args.dry_run:
            work = self.work(args, task, reporter)
            again = tuple(f"all of that once more with {words}" for words in _references(args, task))
            work = replace(work, then=(*work.then, *again))
            forecast(task, work, reporter)
            return 0
        table = not args.json and is_rank0()
        measured = self._measure(args, task, reporter, table)
        if table and args.quiet:  # which silences the warning, and not what figures mean
            for note in task.unknown_notes(self.unknown):
                reporter.answer(note)
        return finish(measured, args, reporter)

    def open(
        self,
        args: argparse.Namespace,
        device: "torch.device",
        reporter: Reporter,
        *,
        task: "Task | None" = None,
        results: Path | None = None,
    ) -> Evaluation:
        """See `protocol.OpenEvaluation`."""
        self.check(args)
        ready = task or self._task(args, device, reporter, results=results)
        return Evaluation(ready.describe()["data"], lambda table: self._measure(args, ready, reporter, table))

    def _task(
        self, args: argparse.Namespace, device: "torch.device", reporter: Reporter, *, results: Path | None
    ) -> "Task":
        return task_of(args, device, reporter, results=results, unknown=self.unknown, multilabel=self.multilabel)

    def _measure(self, args: argparse.Namespace, task: "Task", reporter: Reporter, table: bool) -> Measured:
        from .reporting.references import print_references, with_reference
        from .reporting.report import ScoredFiles

        result, scored = self.measure(args, task, reporter, table)
        for words, (name, other) in _references(args, task).items():
            reporter.note(f"{words}:")
            result = with_reference(result, name, self._reference(name, other(), args, reporter))
        if table:
            print_references(result, reporter)
        return result, (self.files or ScoredFiles)(scored)

    def _reference(self, name: str, task: "Task", args: argparse.Namespace, reporter: Reporter) -> "Result":
        own = argparse.Namespace(**vars(args))
        if getattr(args, "state", None) is not None:
            own.state = args.state.with_name(f"{args.state.name}.{name}")
        result, _ = self.measure(own, task, reporter, False)
        return result


def _references(args: argparse.Namespace, task: "Task") -> "dict[str, tuple[str, Callable[[], Task]]]":
    """What the options ask to measure beside the network: in words -> (name in the result, the task)."""
    from excb.references.untrained import NETWORK

    from .reporting.references import OPTIONS

    every: dict[str, tuple[str, Callable[[], Task]]] = {
        BASELINES[option]: (name, partial(task.baseline, name)) for name, option in OPTIONS.items() if name != NETWORK
    }
    if not task.is_untrained:
        every["the same network untrained"] = NETWORK, task.untrained
    return {words: one for words, one in every.items() if getattr(args, OPTIONS[one[0]], False)}


def finish(measured: Measured, args: argparse.Namespace, reporter: Reporter) -> int:
    """Write what was measured to --out, and print it where --json asks for it; all ranks call this. The exit code."""
    result, write = measured
    if args.out is not None:
        reporter.note(f"wrote {', '.join(map(str, write(result, args.out)))}")
    if args.json and is_rank0():
        reporter.answer(result.to_json())
    return 0


def forecast(task: "Task", work: Work, reporter: Reporter) -> None:
    """Answer --dry-run: what an evaluation computes and takes; all ranks call this."""
    from .features.export import describe, plan

    extract = work.extract or partial(task.extraction, kind=work.kind)
    sets = {name: extract(images) for name, images in work.features.items()}
    planned = plan(sets, task.cache, timed=extract(task.train), passes=work.passes)
    if is_rank0():
        reporter.answer(f"it can run: about {duration(planned['seconds'])} here, by the time of a few images")
        reporter.answer(describe(planned, work.then))


def task_of(
    args: argparse.Namespace,
    device: "torch.device",
    reporter: Reporter,
    *,
    results: Path | None,
    unknown: str = "count as wrong",
    multilabel: bool = False,
) -> "Task":
    """Load and check the checkpoint and the images.

    Args:
        args: the options of `options.add_task_options`.
        device: where to compute.
        reporter: prints notes, progress and tables.
        results: the folder that results will be written to; it may not lie among the images.
        unknown: what happens to test images of classes that train lacks, for the warning about them.
        multilabel: whether images may have a set of labels each.
    """
    train, test = images_of(args, reporter, results=results, multilabel=multilabel)
    task = prepared(args, train, test, device)
    warn_of_unknown(task, reporter, unknown)
    return task


def images_of(
    args: argparse.Namespace, reporter: Reporter, *, results: Path | None, multilabel: bool = False
) -> "tuple[Images, Images]":
    """The train and the test images that options name; arguments as `task_of`."""
    from excb.distributed.collectives import all_succeed, run_on_rank0
    from excb.images.scanning import refuse_among

    from .data.concerns import concerns
    from .data.multilabel import has_label_sets
    from .data.sources import train_and_test

    train, test = train_and_test(
        args.data,
        args.train,
        args.test,
        rename=_renames(args.rename),
        data_root=args.data_root,
        note=reporter.note,
    )
    several = has_label_sets(train)
    if several != has_label_sets(test):
        raise UserError.on_all_ranks(
            "train or test images have a set of labels each, the others have one: use one kind"
        )
    if several and not multilabel:
        raise UserError.on_all_ranks(
            f"the images in {train.root} have a set of labels each, and this evaluation needs one class for each: "
            "docs/sets.md lists those that take sets"
        )
    if results is not None:
        for part in (train, test):
            all_succeed(partial(refuse_among, part, results))
    for line in run_on_rank0(lambda: concerns(train, test)):
        reporter.warn(line)
    return train, test


def warn_of_unknown(task: "Task", reporter: Reporter, unknown: str = "count as wrong") -> None:
    """Warn of each class of test images that the train set lacks."""
    for name, note in zip(task.unknown, task.unknown_notes(unknown), strict=True):
        reporter.warn(f"{note} (--rename {name}=TRAIN_CLASS)")


def prepared(
    args: argparse.Namespace, train: "Images", test: "Images", device: "torch.device", *, heads: bool = False
) -> "Task":
    """Load the checkpoint onto its device, with images and cache as the options say; all ranks call this."""
    from excb.distributed.collectives import all_succeed
    from excb.remote.home import cache_root

    from .task import Task

    task = all_succeed(
        lambda: Task.prepare(
            args.ckpt,
            train,
            test,
            network=args.network,
            resize=args.resize,
            crop=args.crop,
            device=device,
            batch=args.batch_size,
            workers=args.workers,
            cache=None if args.no_cache else args.cache or cache_root(),
            heads=heads,
            precision=args.feature_precision,
        )
    )
    return task.calibrated()


def _renames(pairs: Sequence[str]) -> dict[str, str]:
    if wrong := [pair for pair in pairs if pair.count("=") != 1]:
        raise UserError(f"--rename {wrong[0]}: write TEST=TRAIN, the folder's name in test and its name in train")
    return dict(pair.split("=") for pair in pairs)
