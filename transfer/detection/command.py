"""One detection run from job to result: preflight, training, evaluation, pictures."""

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from excb.checkpoint.same_run import require_same_run
from excb.distributed.collectives import rank, run_on_rank0
from excb.distributed.signals import StopRequest
from excb.errors import UserError
from excb.files import json_text
from excb.files.atomic import write_bytes, write_text
from excb.results.result import Result

from ..coco import scoring
from . import drawing
from .engines import open_engine
from .preflight import preflight
from .request import Request
from .setup.job import Job

IDENTITY, PREDICTIONS, RESULT = "run.json", "predictions.json", "result.json"  # in a run folder


def evaluate(request: Request, job: Job, *, table: bool = True) -> Result | int:
    """Train, or resume the run in the job's folder, then evaluate.

    Returns:
        The result, written to the folder's result.json; or the exit code of a run that was asked to stop.

    Raises:
        UserError: the folder holds another run, the preflight fails, or the run cannot run on this machine.
    """
    start, engine, reporter = time.monotonic(), open_engine(request.engine), job.reporter
    identity = _identity(request, job)
    is_new = run_on_rank0(lambda: _is_new(job.folder, identity))
    check_first = request.schedule in {"1x", "2x"} if request.preflight is None else request.preflight
    if is_new and check_first:
        run_on_rank0(lambda: preflight(engine, job))
    if is_new:
        run_on_rank0(lambda: write_text(json.dumps(identity, indent=2) + "\n", job.folder / IDENTITY))
    with StopRequest() as stop:
        if not engine.train(job, stop):
            if stop.received is not None:
                reporter.note(f"stopped by {stop.received.name}: run the same command to resume")
            return stop.exit_code
    predictions = engine.predict(job, job.val)
    seconds = time.monotonic() - start
    result = run_on_rank0(lambda: _report(request, job, predictions, engine.differences, seconds))
    if table and rank() == 0:
        title = f"Mask R-CNN ({job.settings.architecture}) on {len(job.val):,} images of {job.val.source.name}"
        rows = [[name, f"{value:.2f}"] for name, value in result.figures.items()]
        reporter.table(title, ["figure", "AP"], rows)
    return result


def _identity(request: Request, job: Job) -> dict[str, Any]:
    """Everything that a run's weights depend on."""
    return {
        "engine": request.engine,
        "schedule": request.schedule,
        "recipe": request.recipe,
        "settings": json.loads(json.dumps(asdict(job.settings))),
        "weights": job.weights,
        "train": job.train.fingerprint,
    }


def _is_new(folder: Path, identity: dict[str, Any]) -> bool:
    """Whether the folder is new; the folder of another run is refused."""
    file = folder / IDENTITY
    try:
        stored = json_text.parse(file.read_text(encoding="utf-8")) if file.exists() else None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file} ({error}): name another --run") from None
    if stored is None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} is a file, or holds other files: name a new folder with --run")
        return True
    require_same_run(folder, _for_message(stored), _for_message(identity), advice="name another --run")
    return False


def _for_message(identity: Any) -> dict[str, Any]:
    """A run's identity with names that a user knows."""
    if not isinstance(identity, dict):
        return {}
    names = {"weights": "checkpoint", "train": "training set"}
    return {names.get(str(name), str(name)): value for name, value in identity.items()}


def _report(
    request: Request, job: Job, detections: list[dict[str, Any]], differences: tuple[str, ...], seconds: float
) -> Result:
    identity = _identity(request, job)
    predictions = scoring.write_predictions(detections, job.folder / PREDICTIONS)  # first: they took hours
    scores = scoring.score(job.val, detections)
    pictures = drawing.write_pictures(job.val, detections, job.folder / "pictures")
    notes = list(differences)
    if request.schedule in {"smoke", "overfit"}:
        notes.append(f"schedule {request.schedule}: shows that the machinery works, not how good the checkpoint is")
    result = Result(
        protocol="detection",
        figures={name: round(value, 4) for name, value in scores.figures.items()},
        settings={name: value for name, value in identity.items() if name not in {"weights", "train"}},
        checkpoint={
            "source": request.checkpoint,
            "architecture": f"resnet{job.depth}",
            "network": request.network,
            "weights_sha256": identity["weights"],
        },
        data={
            name: {"root": str(images.source), "images": len(images), "fingerprint": images.fingerprint}
            for name, images in (("train", job.train), ("test", job.val))
        }
        | {"classes": len(job.val.classes)},
        seconds=round(seconds, 1),
        per_class=scores.per_class,
        notes=notes,
        predictions=predictions,
    )
    write_text(result.to_json() + "\n", job.folder / RESULT)
    job.reporter.note(f"wrote {job.folder / RESULT}, {PREDICTIONS} and {pictures[-1]}")
    return result


def copy_result(result: Result, folder: Path, file: Path) -> list[Path]:
    """Write a copy of a run's result to another file, with its predictions beside it.

    Raises:
        UserError: a file cannot be written.
    """
    beside = file.with_name(f"{file.name.removesuffix('.json')}.predictions.json")
    write_bytes((folder / PREDICTIONS).read_bytes(), beside)
    write_text(replace(result, predictions=result.predictions | {"file": beside.name}).to_json() + "\n", file)
    return [file, beside]
