"""`excb-eval all`: every protocol that applies to a checkpoint and its images, each once, however often stopped."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from excb.console import Reporter
from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError, is_rank0, nearest_name, require
from excb.files import json_text
from excb.files.atomic import write_text
from excb.networks.backbone import weights_hash
from excb.results.result import Result
from excb.version import __version__

from ..detection.command import DEPTHS
from ..features.extraction import files_hash
from ..linear import recipes
from ..task import Task

STATE = "all.json"  # in the folder: what every finished protocol's result hangs on
_WORDS = {
    "weights": "the checkpoint",
    "preprocessing": "the preprocessing",
    "train": "the train images",
    "test": "the test images",
    "command": "its settings",
    "version": "the version of excb",
    "images": "the images of --coco",
}

# Run a command line of `excb-eval`, and write its result to FILE.json; its files are returned.
Run = Callable[[Sequence[str], Path], list[Path]]


@dataclass(frozen=True)
class Step:
    """One protocol.

    Args:
        name: of its result file.
        title: as people call it.
        command: of `excb-eval`, without checkpoint and images.
        skipped: why it does not apply; empty where it does.
        depends_on: what its result hangs on, beside the command; compared with that of a finished one.
    """

    name: str
    title: str
    command: list[str]
    skipped: str = ""
    depends_on: dict[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> dict[str, Any]:
        """All that the result hangs on, as JSON holds it."""
        found: dict[str, Any] = json.loads(json.dumps(self.depends_on | {"command": self.command}))
        return found

    @property
    def code(self) -> str:
        """Names the state of an unfinished evaluation."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Outcome:
    """A protocol after all is done.

    Args:
        step: the protocol.
        file: its result; None where there is none.
        result: read from it.
        failed: why it could not be measured; empty where it was, or was skipped.
        before: whether an earlier call had measured it.
    """

    step: Step
    file: Path | None = None
    result: Result | None = None
    failed: str = ""
    before: bool = False


# ---------------------------------------------------------------------------------------------------------------------
# What to do
# ---------------------------------------------------------------------------------------------------------------------


def steps(
    task: Task,
    *,
    linear: str = "fast",
    seeds: Sequence[int] = (0,),
    network: str = "teacher",
    detection: tuple[Sequence[str], Mapping[str, Any]] | None = None,
    only: Sequence[str] = (),
) -> list[Step]:
    """Every protocol, those that do not apply with the reason.

    Args:
        task: backbone and images.
        linear: protocol of the linear heads.
        seeds: of fine-tuning.
        network: of a run's checkpoint.
        detection: options of `excb-eval detection`, and what its result hangs on; None without images for it.
        only: names of protocols, such as "knn"; empty is all.

    Raises:
        UserError: one of `only` is none, or none of them applies; there is no such protocol of linear heads; a seed is
            there twice.
    """
    if linear != "logreg":
        recipes.choose(linear)
    require(len(set(seeds)) == len(seeds), "--seeds names a seed twice")
    seed = ["--seeds", *map(str, seeds)]
    depends_on = _hangs_on(task, network)
    found = [
        Step("knn", "k-NN", ["knn"], depends_on=depends_on),
        Step("linear", f"Linear, {linear}", ["linear", "--protocol", linear], depends_on=depends_on),
        *(
            Step(
                f"semisup_{percent}",
                f"{percent} % of the labels",
                ["semisup", "--percent", str(percent), *seed],
                skipped=_too_few(task, percent),
                depends_on=depends_on,
            )
            for percent in (1, 10)
        ),
        _detection_step(task, detection, depends_on),
    ]
    names = [step.name for step in found]
    if wrong := [name for name in only if name not in names]:
        raise UserError(
            f"--only {wrong[0]}: no such protocol{nearest_name(wrong[0], names)}; there are {', '.join(names)}"
        )
    chosen = [step for step in found if not only or step.name in only]
    if all(step.skipped for step in chosen):
        raise UserError(f"nothing to evaluate: {chosen[0].name} does not apply ({chosen[0].skipped})")
    return chosen


def _hangs_on(task: Task, network: str) -> dict[str, Any]:
    return {
        "weights": weights_hash(task.backbone.network),
        "network": network,
        "preprocessing": task.preprocessing.to_dict(),
        "train": [task.train.fingerprint, files_hash(task.train)],
        "test": [task.test.fingerprint, files_hash(task.test)],
        "version": __version__,
    }


def _too_few(task: Task, percent: int) -> str:
    images, classes = round(len(task.train) * percent / 100), len(task.train.classes or ())
    if images >= classes:
        return ""
    return f"{percent} % of {len(task.train):,} train images are {images}, fewer than {classes} classes"


def _detection_step(
    task: Task, detection: tuple[Sequence[str], Mapping[str, Any]] | None, depends_on: Mapping[str, Any]
) -> Step:
    name = task.backbone.entry.architecture.name
    common = {key: depends_on[key] for key in ("weights", "network", "version")}
    if name not in DEPTHS:
        return Step("detection", "Detection", ["detection"], skipped=f"it takes a {' or '.join(DEPTHS)}, not a {name}")
    if detection is None:
        return Step("detection", "Detection", ["detection"], skipped="name images for it with --coco DIR")
    words, images = detection
    return Step("detection", "Detection", ["detection", *words], depends_on=common | {"images": dict(images)})


# ---------------------------------------------------------------------------------------------------------------------
# Doing it
# ---------------------------------------------------------------------------------------------------------------------


def evaluate(found: Sequence[Step], folder: Path, run: Run, reporter: Reporter) -> list[Outcome]:
    """Make every protocol that applies and is not finished; one that fails does not keep the others from being made.

    Args:
        found: protocols, as `steps` gives them.
        folder: for results, states and what they hang on.
        run: makes one.
        reporter: where to talk.

    Raises:
        UserError: the folder cannot be written.
    """
    outcomes = []
    todo = [step for step in found if not step.skipped]
    with reporter.progress("protocols", len(todo)) as bar:
        for step in found:
            if step.skipped:
                reporter.note(f"{step.title}: skipped, {step.skipped}")
                outcomes.append(Outcome(step))
                continue
            bar.status = step.title
            outcomes.append(_one(step, folder, run, reporter))
            bar.advance()
    return outcomes


def _one(step: Step, folder: Path, run: Run, reporter: Reporter) -> Outcome:
    file = folder / f"{step.name}.json"
    done, why = run_on_rank0(lambda: finished(step, folder))
    if done:
        reporter.note(f"{step.title}: finished before")
        return Outcome(step, file, _read(file), before=True)
    if why:
        reporter.note(f"{step.title}: measured again, for {why}")
    reporter.note(f"excb-eval {' '.join(step.command)}")
    try:
        run(step.command + state_of(step, folder), file)
    except UserError as error:
        reporter.warn(f"{step.title}: {error}")
        return Outcome(step, failed=str(error))
    run_on_rank0(lambda: _remember(step, folder))
    return Outcome(step, file, _read(file))


def state_of(step: Step, folder: Path) -> list[str]:
    """Options that keep an unfinished evaluation: a changed checkpoint or other images begin one of their own."""
    place = str(folder / "state" / f"{step.name}-{step.code}")
    option = {"linear": ["--state", f"{place}.pt"], "semisup": ["--state", place], "detection": ["--run", place]}
    return option.get(step.command[0], [])


def finished(step: Step, folder: Path) -> tuple[bool, str]:
    """Whether a protocol's result is there; if there is one of something else, what changed."""
    known, file = _state(folder).get(step.name), folder / f"{step.name}.json"
    if not isinstance(known, dict):
        return False, ""
    for name, value in step.identity.items():
        if known.get(name) != value:
            return False, f"{_WORDS.get(name, name)} changed"
    if not file.is_file() or known.get("sha256") != _digest(file):
        return False, f"{file} is gone or changed"
    return True, ""


def _remember(step: Step, folder: Path) -> None:
    known = _state(folder) | {step.name: step.identity | {"sha256": _digest(folder / f"{step.name}.json")}}
    write_text(json.dumps(known, indent=2) + "\n", folder / STATE)


def _state(folder: Path) -> dict[str, Any]:
    try:
        found = json_text.parse((folder / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {folder / STATE} ({error}): remove it to measure all again") from None
    return found if isinstance(found, dict) else {}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _read(file: Path) -> Result | None:
    return Result.from_json(file.read_text(encoding="utf-8"), source=str(file)) if is_rank0() else None


# ---------------------------------------------------------------------------------------------------------------------
# Telling
# ---------------------------------------------------------------------------------------------------------------------


def plan(found: Sequence[Step], folder: Path | None) -> list[dict[str, Any]]:
    """What a call would do, ready for JSON: "name", "command", "state" (run, finished, skipped) and "why"."""
    told = []
    for step in found:
        done, why = finished(step, folder) if folder is not None else (False, "")
        state = "skipped" if step.skipped else "finished" if done else "run"
        command = ["excb-eval", *step.command]
        told.append({"name": step.name, "command": command, "state": state, "why": step.skipped or why})
    return told


def to_dict(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Plain values for JSON: results by protocol, why others were skipped, and what failed."""
    return {
        "results": {one.step.name: json.loads(one.result.to_json()) for one in outcomes if one.result is not None},
        "skipped": {one.step.name: one.step.skipped for one in outcomes if one.step.skipped},
        "failed": {one.step.name: one.failed for one in outcomes if one.failed},
    }
