"""`excb-eval all`: every protocol that applies to a checkpoint and its images, each once, resumable."""

import hashlib
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from excb.console import Reporter
from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError, is_rank0, nearest_name
from excb.features.extraction import files_hash
from excb.files import json_text
from excb.files.foreign import read_text, sha256_of
from excb.networks.backbone import weights_hash
from excb.option_parser import of_words, to_words
from excb.results.beside import FileBeside, refuse_other_beside
from excb.results.replacing import refuse_other_result, result_at
from excb.results.result import ResultRecord
from excb.version import __version__

from ..data.multilabel import has_label_sets
from ..options import AGAINST, BASELINES, REFERENCES, PassOptions
from ..protocol import Protocol, SuiteStep
from ..protocols import PROTOCOLS, of_command
from ..runner import Evaluation, narrowed
from ..task import Task
from .options import SuiteOptions, options_of

STATE = "all.json"  # in the folder: what every finished step's result depends on
_ADVICE = "name another folder with --out, or replace its files with --overwrite"
_WORDS = {
    "weights": "the checkpoint",
    "preprocessing": "the preprocessing",
    "train": "the train images",
    "test": "the test images",
    "command": "its settings",
    "version": "the version of excb",
    "images": "the images of --coco",
    "masks": "the images of --masks",
    "feature_precision": "--feature-precision",
    "untrained": "--untrained",
    **{name: f"--{name}" for name in (*BASELINES, AGAINST)},
}


@dataclass(frozen=True)
class PlannedStep:
    """One evaluation of a suite."""

    name: str  # of its result file
    title: str  # as people call it
    words: Sequence[str]  # after `excb-eval`, without checkpoint and images
    depends_on: Mapping[str, Any] = field(default_factory=dict)  # all that its result depends on, beside the words
    skipped: str = ""  # why it does not apply; empty where it does
    evaluation: Evaluation | None = None  # of steps that are protocols and apply
    beside: Sequence[FileBeside] = ()  # files that are written beside its result, of steps on the suite's images


# Runs a step, and writes its result to FILE.json; its files are returned.
RunStep = Callable[[PlannedStep, Path], list[Path]]


@dataclass(frozen=True)
class StepOutcome:
    """A protocol after all is done."""

    step: PlannedStep  # the protocol
    file: Path | None = None  # its result; None where there is none
    result: ResultRecord | None = None  # read from it
    failed: str = ""  # why it could not be measured; empty where it was, or was skipped
    before: bool = False  # whether an earlier call had measured it


def steps(task: Task, options: SuiteOptions) -> list[PlannedStep]:
    """Every step of every protocol, those that do not apply with the reason.

    Args:
        task: backbone and images.
        options: of `excb-eval all`; `only` names steps, and none is all of them.

    Raises:
        UserError: one of `only` is none, or none of them applies; or a protocol refuses its options.
    """
    depends_on = common(task, options.network)
    planned = [(PROTOCOLS[name], step) for name in PROTOCOLS for step in _steps_of(name, task, options, depends_on)]
    names = [step.name for _, step in planned]
    if wrong := [name for name in options.only if name not in names]:
        raise UserError(
            f"--only {wrong[0]}: no such protocol{nearest_name(wrong[0], names)} (there are {', '.join(names)})"
        )
    wanted = [
        _step(protocol, step, options, task)
        for protocol, step in planned
        if not options.only or step.name in options.only
    ]
    if all(step.skipped for step in wanted):
        raise UserError(f"nothing to evaluate: {wanted[0].name} does not apply ({wanted[0].skipped})")
    return wanted


def _steps_of(name: str, task: Task, options: SuiteOptions, depends_on: Mapping[str, Any]) -> Sequence[SuiteStep]:
    protocol = PROTOCOLS[name]
    if protocol.in_suite is None:
        return ()
    asked: dict[str, Any] = {each: True for each in protocol.references if getattr(options, each)}
    asked |= {AGAINST: list(options.against)} if options.against and hasattr(protocol.shared, AGAINST) else {}
    return protocol.in_suite.steps(task, options_of(options, protocol.in_suite.options), {**depends_on, **asked})


def _step(protocol: Protocol, step: SuiteStep, options: SuiteOptions, task: Task) -> PlannedStep:
    """A step with the options of `all` that reach it, checked before any step runs.

    Raises:
        UserError: the protocol opens images of its own, and lacks an option that changes its figures.
    """
    if step.skipped:
        return PlannedStep(step.name, step.title, [protocol.name], skipped=step.skipped)
    beside: Sequence[FileBeside] = ()
    if protocol.shares_task:  # whose sizes and images are in the task already
        names = {each.name for each in fields(protocol.shared)}
        shared = protocol.shared(**{name: getattr(options, name) for name in names})
        beside = protocol.beside(has_label_sets(task.test))
    else:
        shared = narrowed(options_of(options, PassOptions), protocol.shared, owner=protocol.name)
        shared = replace(shared, **{name: getattr(options, name) for name in protocol.references})
        shared = replace(shared, **{name: getattr(options, name) for name in protocol.references})
    evaluation = Evaluation(protocol, shared, step.options)
    evaluation.check()
    words = [protocol.name, *to_words(step.options)]
    return PlannedStep(step.name, step.title, words, step.depends_on, evaluation=evaluation, beside=beside)


def common(task: Task, network: str) -> dict[str, Any]:
    """The settings that every result on a task depends on."""
    return {
        "weights": weights_hash(task.backbone.network),
        "network": network,
        "preprocessing": task.preprocessing.to_dict(),
        "train": [task.train.fingerprint, files_hash(task.train)],
        "test": [task.test.fingerprint, files_hash(task.test)],
        "version": __version__,
        **task.settings,
    }


def identity(step: PlannedStep) -> dict[str, Any]:
    """All that a step's result depends on, as JSON holds it."""
    values: dict[str, Any] = json.loads(json.dumps({**step.depends_on, "command": list(step.words)}))
    return values


def refuse_other_tables(folder: Path, files: Sequence[FileBeside]) -> None:
    """Refuse a folder with files of something else, which pages and tables would replace. Raises UserError then."""
    refuse_other_beside(folder / STATE, files, advice=_ADVICE)


def refuse_other_results(planned: Sequence[PlannedStep], folder: Path) -> None:
    """Refuse a folder with results of another checkpoint or of other labelled images, which steps would replace.

    Steps with images of their own are compared again when these are open.

    Args:
        planned: the steps.
        folder: for their results.

    Raises:
        UserError: it has one.
    """
    for step in planned:
        if step.skipped:
            continue
        file = folder / f"{step.name}.json"
        refuse_other_beside(file, step.beside, advice=_ADVICE)
        if (before := result_at(file, advice=_ADVICE)) is not None:
            images = {part: step.depends_on[part][0] for part in ("train", "test") if part in step.depends_on}
            protocol = of_command(step.words[0])
            refuse_other_result(
                before,
                file,
                is_protocol=partial(operator.eq, step.words[0]) if protocol is None else protocol.made,
                weights=step.depends_on.get("weights"),
                images=images,
                advice=_ADVICE,
            )


def run_suite(
    steps_to_make: Sequence[PlannedStep], folder: Path, run: RunStep, reporter: Reporter, *, what: str = "protocols"
) -> list[StepOutcome]:
    """Run every step that applies and is not finished. One that fails does not stop the others.

    Args:
        steps_to_make: as `steps` gives them.
        folder: for results, unfinished states, and the record of finished steps.
        run: runs one.
        reporter: prints notes, progress and tables.
        what: the steps are, for the progress bar.

    Raises:
        UserError: the folder cannot be written.
    """
    outcomes = []
    todo = [step for step in steps_to_make if not step.skipped]
    with reporter.progress(what, len(todo)) as bar:
        for step in steps_to_make:
            if step.skipped:
                reporter.note(f"{step.title}: skipped, {step.skipped}")
                outcomes.append(StepOutcome(step))
                continue
            bar.status = step.title
            outcomes.append(_one(step, folder, run, reporter))
            bar.advance()
    return outcomes


def _one(step: PlannedStep, folder: Path, run: RunStep, reporter: Reporter) -> StepOutcome:
    file = folder / f"{step.name}.json"
    done, why = run_on_rank0(lambda: finished(step, folder))
    if done:
        reporter.note(f"{step.title}: finished before")
        return StepOutcome(step, file, _result(file), before=True)
    if why:
        reporter.note(f"{step.title}: measured again, because {why}")
    reporter.note(f"excb-eval {' '.join(step.words)}")
    try:
        run(with_state(step, folder), file)
    except UserError as error:
        reporter.warn(f"{step.title}: {error}")
        return StepOutcome(step, failed=str(error))
    run_on_rank0(lambda: _remember(step, folder))
    return StepOutcome(step, file, _result(file))


def with_state(step: PlannedStep, folder: Path) -> PlannedStep:
    """A step that keeps its unfinished evaluation: a changed checkpoint or other images begin one of their own."""
    evaluation = step.evaluation
    if evaluation is None or not evaluation.protocol.state or not evaluation.protocol.keeps_state(evaluation.own):
        return step
    protocol = evaluation.protocol
    code = hashlib.sha256(json.dumps(identity(step), sort_keys=True).encode()).hexdigest()[:8]
    state = folder / "state" / f"{step.name}-{code}{protocol.state_suffix}"
    return replace(step, evaluation=replace(evaluation, own=replace(evaluation.own, **{protocol.state: state})))


def finished(step: PlannedStep, folder: Path) -> tuple[bool, str]:
    """Whether a protocol's result is there; if there is one of something else, what changed."""
    before, file = _state(folder).get(step.name), folder / f"{step.name}.json"
    if not isinstance(before, dict):
        return False, ""
    now = identity(step)
    # A reference that is no longer asked for does no harm beside the figures.
    for name in [*now, *(name for name in before if name not in {"sha256", AGAINST, *REFERENCES, *now})]:
        same = _same_command if name == "command" else operator.eq
        if not same(before.get(name), now.get(name)):
            return False, f"{_WORDS.get(name, name)} changed"
    if not file.is_file() or before.get("sha256") != sha256_of(file):
        return False, f"{file} is gone or changed"
    return True, ""


def _same_command(before: Any, now: Any) -> bool:
    """Whether two command lines set the same options: versions until 0.2 also wrote those that are the default."""
    if before == now or not isinstance(before, list) or before[:1] != now[:1]:
        return bool(before == now)
    if (protocol := of_command(now[0])) is None:
        return False
    try:
        first, second = (of_words(protocol.options, words[1:], program=now[0]) for words in (before, now))
    except UserError:  # an option that this version lacks
        return False
    return bool(first == second)


def _result(file: Path) -> ResultRecord | None:
    return ResultRecord.read(file) if is_rank0() else None


def _remember(step: PlannedStep, folder: Path) -> None:
    records = _state(folder) | {step.name: identity(step) | {"sha256": sha256_of(folder / f"{step.name}.json")}}
    json_text.write_json(records, folder / STATE)


def _state(folder: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json_text.parse(read_text(folder / STATE))
        if not isinstance(state, dict):
            raise ValueError("it has no record of steps")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {folder / STATE} ({error}): remove it to measure all again") from None
    return state


def plan_suite(planned: Sequence[PlannedStep], folder: Path | None) -> list[dict[str, Any]]:
    """The plan of a call, ready for JSON: "name", "command", "state" (run, finished, skipped) and "why"."""
    rows = []
    for step in planned:
        done, why = finished(step, folder) if folder is not None else (False, "")
        state = "skipped" if step.skipped else "finished" if done else "run"
        command = ["excb-eval", *step.words]
        rows.append({"name": step.name, "command": command, "state": state, "why": step.skipped or why})
    return rows


def to_dict(outcomes: Sequence[StepOutcome]) -> dict[str, Any]:
    """Plain values for JSON: results by protocol, why others were skipped, and what failed."""
    return {
        "results": {one.step.name: json.loads(one.result.to_json()) for one in outcomes if one.result is not None},
        "skipped": {one.step.name: one.step.skipped for one in outcomes if one.step.skipped},
        "failed": {one.step.name: one.failed for one in outcomes if one.failed},
    }
