"""One detection run: preflight, training, evaluation, pictures."""

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from excb.checkpoint.same_run import require_same_run
from excb.console import Reporter, plural
from excb.distributed.collectives import run_on_rank0
from excb.distributed.signals import StopRequest
from excb.errors import UserError
from excb.files import json_text
from excb.files.atomic import write_bytes
from excb.files.foreign import read_bytes, read_text
from excb.images.image_set import sizes_hash
from excb.images.pixels import EIGHT_BIT
from excb.results.pictures import DETECTION_RUN, DETECTIONS
from excb.results.result import ResultRecord

from ..coco import scoring
from ..protocol import Measurement, StoppedEvaluationError
from . import drawing
from .engines import open_engine
from .options import DetectionOptions
from .preflight import preflight
from .setup.job import Job
from .setup.settings import stored
from .task import DetectionTask

BOXES_ALONE = "boxes alone are judged, by a Faster R-CNN: the annotations have no masks, or masks=false was set"
IDENTITY, PREDICTIONS, RESULT = DETECTION_RUN, "predictions.json", "result.json"  # in a run folder


def measure(task: DetectionTask, options: DetectionOptions, reporter: Reporter) -> Measurement:
    """Train, or resume the run in the job's folder, then evaluate. All ranks call this.

    Returns:
        The result, which the folder's result.json holds too: six APs of boxes and masks in percent, or three of boxes
        where the annotations have no masks.

    Raises:
        UserError: the engine is not installed, the folder holds another run, the preflight fails, or the run cannot
            run on this machine.
        StoppedEvaluationError: the run was asked to stop; it resumes.
    """
    start, engine = time.monotonic(), open_engine(options.engine)
    task = replace(task, job=replace(task.job, reporter=reporter))
    job = task.job
    is_new = starts_anew(task, options)
    if is_new and options.checks_first:
        run_on_rank0(lambda: preflight(engine, job))
    if is_new:
        run_on_rank0(lambda: json_text.write_json(_run_identity(options, job), job.folder / IDENTITY))
    with StopRequest() as stop:
        if not engine.train_detector(job, stop):
            if stop.received is not None:
                reporter.note(f"stopped by {stop.received.name}: run the same command to resume")
            raise StoppedEvaluationError("detection was stopped: the same command resumes it", exit_code=stop.exit_code)
    predictions = engine.predict(job, job.val)
    seconds = time.monotonic() - start
    result = run_on_rank0(lambda: _report(task, options, predictions, engine.differences, seconds))
    return Measurement(result, None, partial(_show, job, result), partial(_copy, job.folder))


def starts_anew(task: DetectionTask, options: DetectionOptions) -> bool:
    """Whether the run's folder is new, else its run resumes; all ranks call this.

    Raises:
        UserError: the folder holds another run, or other files.
    """
    return run_on_rank0(lambda: _is_new(task.job.folder, _run_identity(options, task.job)))


def _show(job: Job, result: ResultRecord, reporter: Reporter) -> None:
    detector = "Mask R-CNN" if job.settings.masks else "Faster R-CNN, boxes alone"
    title = f"{detector} ({job.settings.architecture}) on {plural(len(job.val), 'image')} of {job.val.listed_in.name}"
    rows = [[name, f"{value:.2f}"] for name, value in result.figures.items()]
    reporter.table(title, ["figure", "AP"], rows)


def _identity(options: DetectionOptions, job: Job) -> dict[str, Any]:
    """Everything that a run's weights depend on."""
    return {
        "engine": options.engine,
        "schedule": options.schedule,
        "recipe": options.recipe,
        "settings": json.loads(json.dumps(stored(job.settings))),
        "weights": job.weights,
        "train": job.train.fingerprint,
        **({} if job.train.pixels == EIGHT_BIT else {"range": job.train.pixels.range}),
    }


def _run_identity(options: DetectionOptions, job: Job) -> dict[str, Any]:
    """The same with the files of the training images, which an annotation file names only."""
    return _identity(options, job) | {"files": sizes_hash(job.train)}


def _is_new(folder: Path, identity: dict[str, Any]) -> bool:
    """Whether the folder is new; the folder of another run is refused."""
    file = folder / IDENTITY
    try:
        stored = json_text.parse(read_text(file)) if file.exists() else None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file} ({error}): name another --run") from None
    if stored is None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} is a file, or holds other files: name a new folder with --run")
        return True
    if isinstance(stored, dict):
        stored = {"files": identity["files"]} | stored  # runs of earlier versions do not say
    require_same_run(folder, _for_message(stored), _for_message(identity), advice="name another --run")
    return False


def _for_message(identity: Any) -> dict[str, Any]:
    """A run's identity with names that a user knows."""
    if not isinstance(identity, dict):
        return {}
    names = {"weights": "checkpoint", "train": "training set"}
    return {names.get(str(name), str(name)): value for name, value in identity.items()}


def _report(
    task: DetectionTask,
    options: DetectionOptions,
    detections: list[dict[str, Any]],
    differences: tuple[str, ...],
    seconds: float,
) -> ResultRecord:
    job = task.job
    predictions = scoring.write_predictions(detections, job.folder / PREDICTIONS)  # first: they took hours
    scores = scoring.score(job.val, detections)
    pictures = drawing.write_pictures(job.val, detections, job.folder / DETECTIONS)
    notes = list(differences)
    if options.schedule in {"smoke", "overfit"}:
        notes.append(f"schedule {options.schedule}: shows that the machinery works, not how good the checkpoint is")
    if not job.settings.masks:
        notes.append(BOXES_ALONE)
    result = ResultRecord(
        protocol="detection",
        figures={name: round(value, 4) for name, value in scores.figures.items()},
        settings={name: value for name, value in _identity(options, job).items() if name not in {"weights", "train"}},
        **task.describe(),
        seconds=round(seconds, 1),
        per_class=scores.per_class,
        notes=notes,
        predictions=predictions,
    )
    result.write(job.folder / RESULT)
    job.reporter.note(f"wrote {job.folder / RESULT}, {PREDICTIONS} and {pictures[-1]}")
    return result


def _copy(folder: Path, result: ResultRecord, file: Path) -> list[Path]:
    """Write a copy of a run's result to another file, with its predictions beside it; all ranks call this.

    Raises:
        UserError: a file cannot be written.
    """
    return run_on_rank0(partial(_copy_result, folder, result, file))


def _copy_result(folder: Path, result: ResultRecord, file: Path) -> list[Path]:
    beside = file.with_name(f"{file.name.removesuffix('.json')}.predictions.json")
    write_bytes(read_bytes(folder / PREDICTIONS), beside)
    replace(result, predictions=result.predictions | {"file": beside.name}).write(file)
    return [file, beside]
