"""The runner of all protocols: command line, Python call, step of a suite, dry run, references, files."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.cli import Command
from excb.console import Reporter, duration
from excb.errors import UserError, is_rank0
from excb.option_parser import flag_of, of_values

from .options import AGAINST, REFERENCES, WITHOUT_EFFECT
from .protocol import Measurement, Protocol, StoppedEvaluationError, Work
from .shell import Shell, shell_command

if TYPE_CHECKING:
    import torch

    from excb.images.image_set import Images
    from excb.results.result import ResultRecord

    from .task import Task


@dataclass(frozen=True)
class Evaluation:
    """A protocol with a checkpoint, images and options: all that its result depends on.

    Attributes:
        protocol: its record.
        shared: the options that it shares with others, of `protocol.shared`.
        own: its own options, of `protocol.options`.
    """

    protocol: Protocol
    shared: Any
    own: Any

    def open(
        self, device: "torch.device", reporter: Reporter, *, out: Path | None = None, overwrite: bool = False
    ) -> "Task":
        """Load and check checkpoint and images; all ranks call this.

        Args:
            device: where to compute.
            reporter: prints notes and progress.
            out: the file or folder that the result will be written to; it may not lie among the images.
            overwrite: it may hold a result of something else.

        Raises:
            UserError: options contradict each other, or checkpoint or images cannot be used; or `out` holds a result
                of another checkpoint, of another protocol or of other images.
        """
        from excb.distributed.collectives import all_succeed, run_on_rank0

        all_succeed(self.check)
        all_succeed(self._check_state)
        task: Task = self.protocol.open(self.shared, self.own, device, reporter)
        if out is not None:
            refuse_results_among(task.sets.values(), out if self.protocol.out == "folder" else out.parent)
            run_on_rank0(partial(self._refuse_others, task, self.protocol.result_file(out), overwrite=overwrite))
        return task

    def _refuse_others(self, task: "Task", file: Path, *, overwrite: bool) -> None:
        from excb.results.beside import refuse_folders

        from .data.multilabel import has_label_sets

        label_sets = any(map(has_label_sets, task.sets.values()))
        refuse_folders([file, *(each.at(file) for each in self.protocol.beside(label_sets))])
        if not overwrite:
            described = task.describe()
            weights, data = described["checkpoint"]["weights_sha256"], described["data"]
            refuse_other_files(self.protocol, file, weights=weights, data=data, label_sets=label_sets)

    def _check_state(self) -> None:
        """Refuse a place for the unfinished evaluation that cannot be written, which would be found after an epoch."""
        from excb.files.atomic import check_writable_folder

        if self.protocol.state and (state := getattr(self.own, self.protocol.state)) is not None:
            check_writable_folder(state if state.is_dir() else state.parent)

    def check(self) -> None:
        """Raise UserError where options contradict each other; nothing is loaded."""
        self.own.check(self.shared)

    def measure(self, task: "Task", reporter: Reporter) -> Measurement:
        """Run the protocol, and on every reference that is asked for; all ranks call this.

        Raises:
            UserError: an image cannot be read, or options do not suit the images.
        """
        from .reporting.references import with_references

        made, references = self.protocol.measure(task, self.own, reporter), dict[str, Measurement]()
        for option in self._references(task, reporter):
            words, reference = task.reference(option)
            reporter.note(f"{words}:")
            own = self._with_state_of(REFERENCES[option])
            references[REFERENCES[option]] = self.protocol.measure(reference(), own, reporter)
        for number, checkpoint in enumerate(getattr(self.shared, AGAINST, ())):
            reporter.note(f"{checkpoint}:")
            own = self._with_state_of(f"{AGAINST}{number}")
            references[checkpoint] = self.protocol.measure(task.beside(checkpoint), own, reporter)
        if references:
            figures = made.result.figures
            main = self.protocol.headline if self.protocol.headline in figures else next(iter(figures))
            sides = {name: (each.result, each.scored) for name, each in references.items()}
            made = made.with_result(with_references((made.result, made.scored), sides, main=main))
        return made.with_result(with_clipped(made.result, task.sets))

    def _references(self, task: "Task", reporter: Reporter) -> list[str]:
        """The options that ask for references of this task; an untrained network needs no untrained one beside it."""
        asked = [option for option in self.protocol.references if getattr(self.shared, option)]
        if "untrained" in asked and task.is_untrained:
            reporter.note("--untrained adds nothing: the network is untrained itself")
            asked.remove("untrained")
        return asked

    def _with_state_of(self, reference: str) -> Any:
        """The protocol's own options, with an unfinished state beside that of the checkpoint."""
        state = getattr(self.own, self.protocol.state) if self.protocol.state else None
        if state is None:
            return self.own
        return replace(self.own, **{self.protocol.state: state.with_name(f"{state.name}.{reference}")})

    def dry_run(self, task: "Task", reporter: Reporter, *, as_json: bool = False) -> int:
        """Answer what the evaluation computes and takes; all ranks call this. The exit code."""
        if self.protocol.dry_run is not None:
            return self.protocol.dry_run(task, self.own, reporter, as_json)
        work = Work(task.sets) if self.protocol.work is None else self.protocol.work(task, self.own, reporter)
        others = [
            *(task.reference(name)[0] for name in self._references(task, reporter)),
            *getattr(self.shared, AGAINST, ()),
        ]
        again = tuple(f"all of that once more with {name}" for name in others)
        forecast(task, replace(work, then=(*work.then, *again)), reporter, as_json=as_json)
        return 0


def refuse_other_files(
    protocol: Protocol,
    file: Path,
    *,
    weights: str | None,
    data: Mapping[str, Any],
    label_sets: bool,
    advice: str | None = None,
) -> None:
    """Refuse to replace a result of something else, or other files with the names of those beside it.

    Args:
        protocol: of the new result.
        file: that would be replaced.
        weights: SHA-256 of the new one's; None where they say nothing.
        data: of the new result.
        label_sets: whether each of its images has a set of labels.
        advice: what to do, as the end of a sentence; by default to name another --out.

    Raises:
        UserError: there is one.
    """
    from excb.results.beside import refuse_other_beside
    from excb.results.replacing import ADVICE, fingerprints, refuse_other_result, result_at

    advice = advice or ADVICE
    if (before := result_at(file, advice=advice)) is not None:
        refuse_other_result(
            before, file, is_protocol=protocol.made, weights=weights, images=fingerprints(data), advice=advice
        )
    refuse_other_beside(file, protocol.beside(label_sets), advice=advice)


def with_clipped(result: "ResultRecord", sets: "Mapping[str, Images]") -> "ResultRecord":
    """A result that counts the images with values outside the range, of all ranks; all ranks call this."""
    from excb.images.image_set import clipped_ledger, share_clipped
    from excb.ledger import NOTHING

    unique = {id(images): (name, images) for name, images in reversed([*sets.items()])}  # one set may have two names
    for _, images in unique.values():
        share_clipped(images)
    found = sum((clipped_ledger(images, name) for name, images in reversed([*unique.values()])), NOTHING)
    return replace(result, ledger=result.ledger + found) if found else result


def refuse_results_among(sets: "Iterable[Images]", folder: Path) -> None:
    """Refuse a folder for results that lies among images, which the next run would find as images; all ranks call it.

    Raises:
        UserError: it does.
    """
    from excb.distributed.collectives import all_succeed
    from excb.images.scanning import refuse_among

    for images in sets:
        all_succeed(partial(refuse_among, images, folder))


def forecast(task: "Task", work: Work, reporter: Reporter, *, as_json: bool) -> None:
    """Answer --dry-run: the work of an evaluation, and its time; all ranks call this."""
    from .features.export import answer_plan, plan_features

    extract: Callable[..., Any] = work.extract or partial(task.extraction, kind=work.kind)
    sets = {name: extract(images) for name, images in work.features.items()}
    planned = plan_features(sets, task.cache, timed=extract(task.train), passes=work.passes, making=work.making)
    if is_rank0():
        if not as_json:
            reporter.answer(f"it can run: about {duration(planned['seconds'])} here, by the time of a few images")
        answer_plan(planned, reporter, then=work.then, as_json=as_json)


def command(protocol: Protocol) -> Command:
    """The command of `excb-eval` that runs a protocol."""

    def work(options: list[Any], shell: Shell, device: "torch.device") -> int:
        evaluation = Evaluation(protocol, *options)
        code = protocol.instead(evaluation.own, shell)
        return _run(evaluation, shell, device) if code is None else code

    return shell_command(
        protocol.name,
        protocol.help,
        (protocol.shared, protocol.options),
        work,
        out=protocol.out,
        metavar=_place(protocol),
        overwrite=True,
        group=protocol.group,
        examples=protocol.examples,
    )


def of_python(protocol: Protocol, values: Mapping[str, Any], *, refused: Mapping[str, str] | None = None) -> Evaluation:
    """The evaluation that Python code describes, by the names of options; None leaves an option at its default.

    Args:
        protocol: its record.
        values: shared and own options.
        refused: names of what only a command line has, and what to do instead.

    Raises:
        UserError: there is no such option, it does not take this value, or one without a default is missing.
    """
    shared = {field.name for field in fields(protocol.shared)}
    own = {name: value for name, value in values.items() if name not in shared}
    return Evaluation(
        protocol,
        of_values(protocol.shared, {name: values[name] for name in shared & values.keys()}, owner=protocol.name),
        of_values(protocol.options, own, owner=protocol.name, refused=refused, others=shared),
    )


def _run(evaluation: Evaluation, shell: Shell, device: "torch.device") -> int:
    """Run a command in one process, which has joined the others."""
    from .reporting.references import print_references

    reporter, out, protocol = shell.reporter, shell.out, evaluation.protocol
    if out is None:
        _refuse_unwritten(evaluation)
    if not shell.dry_run and (why := protocol.missing(evaluation.own)):  # before any image is read
        raise UserError.on_all_ranks(why)
    task = evaluation.open(device, reporter, out=out, overwrite=shell.overwrite)
    if shell.dry_run:
        return evaluation.dry_run(task, reporter, as_json=shell.json)
    try:
        made = evaluation.measure(task, reporter)
    except StoppedEvaluationError as stopped:
        return stopped.exit_code
    if shell.prints:
        made.show(reporter)
        print_references(made.result, reporter)
        if shell.quiet:  # which silences the warning, and not what figures mean
            for note in task.unknown_notes(what) if (what := protocol.unknown(evaluation.own)) else ():
                reporter.answer(note)
    if out is not None:
        reporter.note(f"wrote {', '.join(map(str, made.write(made.result, out)))}")
    if shell.json and is_rank0():
        reporter.answer(made.result.to_json())
    return 0


def _place(protocol: Protocol) -> str:
    """The word for what --out names."""
    return "DIR" if protocol.out == "folder" else "FILE.json"


def _refuse_unwritten(evaluation: Evaluation) -> None:
    """Refuse options that only files need, where none are written."""
    names = [field.name for field in fields(evaluation.own) if field.metadata["shell"].get("files_only")]
    if given := evaluation.own.given(*names):
        where = f"name a place for them with --out {_place(evaluation.protocol)}"
        raise UserError.on_all_ranks(f"{given[0]} only changes written files: {where}")


def narrowed(shared: Any, to: type[Any], *, owner: str) -> Any:
    """Shared options of one kind as those of another, for a protocol that is a step of a suite.

    Args:
        shared: options of the suite.
        to: the dataclass of shared options that a protocol takes.
        owner: the protocol's name, for messages.

    Raises:
        UserError: an option that changes figures differs from its default, and the protocol has none of this name.
    """
    names = {field.name for field in fields(to)}
    for field in fields(shared):
        given = getattr(shared, field.name) != field.default
        if given and field.name not in names | WITHOUT_EFFECT:
            raise UserError(f"{owner} has no {flag_of(field)}: evaluate it alone with `excb-eval {owner}`")
    return to(**{name: getattr(shared, name) for name in names if hasattr(shared, name)})
