"""`excb-eval all`: every protocol that applies to a checkpoint and its images, each once, resumable."""

import argparse
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excb.console import Reporter
from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError, is_rank0, nearest_name
from excb.features.extraction import files_hash
from excb.files import json_text
from excb.files.atomic import write_text
from excb.networks.backbone import weights_hash
from excb.results.result import Result
from excb.version import __version__

from ..old_protocol import SuiteStep
from ..options import BASELINES
from ..protocols import PROTOCOLS, of_command
from ..task import Task

STATE = "all.json"  # in the folder: what every finished step's result depends on
_WORDS = {
    "weights": "the checkpoint",
    "preprocessing": "the preprocessing",
    "train": "the train images",
    "test": "the test images",
    "command": "its settings",
    "version": "the version of excb",
    "images": "the images of --coco",
    "masks": "the images of --masks",
    "untrained": "--untrained",
    **{name: f"--{name}" for name in BASELINES},
}

# Runs a command line of `excb-eval` and writes its result to FILE.json; its files are returned.
RunStep = Callable[[Sequence[str], Path], list[Path]]


@dataclass(frozen=True)
class Outcome:
    """A protocol after all is done."""

    step: SuiteStep  # the protocol
    file: Path | None = None  # its result; None where there is none
    result: Result | None = None  # read from it
    failed: str = ""  # why it could not be measured; empty where it was, or was skipped
    before: bool = False  # whether an earlier call had measured it


def steps(task: Task, args: argparse.Namespace) -> list[SuiteStep]:
    """Every step of every protocol, those that do not apply with the reason.

    Args:
        task: backbone and images.
        args: options of `excb-eval all`; `only` names steps, and none is all of them.

    Raises:
        UserError: one of `only` is none, or none of them applies; or a protocol refuses its options.
    """
    depends_on, every = common(task, args.network), list[SuiteStep]()
    for protocol in PROTOCOLS:
        if protocol.in_suite is not None:
            asked = {name: True for name in protocol.references if getattr(args, name)}
            every += protocol.in_suite.steps(task, args, depends_on | asked)
    names = [step.name for step in every]
    if wrong := [name for name in args.only if name not in names]:
        raise UserError(
            f"--only {wrong[0]}: no such protocol{nearest_name(wrong[0], names)}; there are {', '.join(names)}"
        )
    wanted = [step for step in every if not args.only or step.name in args.only]
    if all(step.skipped for step in wanted):
        raise UserError(f"nothing to evaluate: {wanted[0].name} does not apply ({wanted[0].skipped})")
    return wanted


def common(task: Task, network: str) -> dict[str, Any]:
    """What every result on a task depends on."""
    return {
        "weights": weights_hash(task.backbone.network),
        "network": network,
        "preprocessing": task.preprocessing.to_dict(),
        "train": [task.train.fingerprint, files_hash(task.train)],
        "test": [task.test.fingerprint, files_hash(task.test)],
        "version": __version__,
        **task.settings,
    }


def identity(step: SuiteStep) -> dict[str, Any]:
    """All that a step's result depends on, as JSON holds it."""
    values: dict[str, Any] = json.loads(json.dumps({**step.depends_on, "command": step.command}))
    return values


def evaluate(
    steps_to_make: Sequence[SuiteStep], folder: Path, run: RunStep, reporter: Reporter, *, what: str = "protocols"
) -> list[Outcome]:
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
                outcomes.append(Outcome(step))
                continue
            bar.status = step.title
            outcomes.append(_one(step, folder, run, reporter))
            bar.advance()
    return outcomes


def _one(step: SuiteStep, folder: Path, run: RunStep, reporter: Reporter) -> Outcome:
    file = folder / f"{step.name}.json"
    done, why = run_on_rank0(lambda: finished(step, folder))
    if done:
        reporter.note(f"{step.title}: finished before")
        return Outcome(step, file, _result(file), before=True)
    if why:
        reporter.note(f"{step.title}: measured again, because {why}")
    reporter.note(f"excb-eval {' '.join(step.command)}")
    try:
        run(step.command + state_of(step, folder), file)
    except UserError as error:
        reporter.warn(f"{step.title}: {error}")
        return Outcome(step, failed=str(error))
    run_on_rank0(lambda: _remember(step, folder))
    return Outcome(step, file, _result(file))


def state_of(step: SuiteStep, folder: Path) -> list[str]:
    """Options that keep an unfinished evaluation: a changed checkpoint or other images begin one of their own."""
    protocol = of_command(step.command[0])
    if protocol is None or not protocol.state:
        return []
    code = hashlib.sha256(json.dumps(identity(step), sort_keys=True).encode()).hexdigest()[:8]
    return [protocol.state, str(folder / "state" / f"{step.name}-{code}{protocol.state_suffix}")]


def finished(step: SuiteStep, folder: Path) -> tuple[bool, str]:
    """Whether a protocol's result is there; if there is one of something else, what changed."""
    before, file = _state(folder).get(step.name), folder / f"{step.name}.json"
    if not isinstance(before, dict):
        return False, ""
    for name, value in identity(step).items():
        if before.get(name) != value:
            return False, f"{_WORDS.get(name, name)} changed"
    if not file.is_file() or before.get("sha256") != _digest(file):
        return False, f"{file} is gone or changed"
    return True, ""


def _result(file: Path) -> Result | None:
    return Result.read(file) if is_rank0() else None


def _remember(step: SuiteStep, folder: Path) -> None:
    records = _state(folder) | {step.name: identity(step) | {"sha256": _digest(folder / f"{step.name}.json")}}
    write_text(json.dumps(records, indent=2) + "\n", folder / STATE)


def _state(folder: Path) -> dict[str, Any]:
    try:
        state = json_text.parse((folder / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {folder / STATE} ({error}): remove it to measure all again") from None
    return state if isinstance(state, dict) else {}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def plan(planned: Sequence[SuiteStep], folder: Path | None) -> list[dict[str, Any]]:
    """What a call would do, ready for JSON: "name", "command", "state" (run, finished, skipped) and "why"."""
    rows = []
    for step in planned:
        done, why = finished(step, folder) if folder is not None else (False, "")
        state = "skipped" if step.skipped else "finished" if done else "run"
        command = ["excb-eval", *step.command]
        rows.append({"name": step.name, "command": command, "state": state, "why": step.skipped or why})
    return rows


def to_dict(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Plain values for JSON: results by protocol, why others were skipped, and what failed."""
    return {
        "results": {one.step.name: json.loads(one.result.to_json()) for one in outcomes if one.result is not None},
        "skipped": {one.step.name: one.step.skipped for one in outcomes if one.step.skipped},
        "failed": {one.step.name: one.failed for one in outcomes if one.failed},
    }
