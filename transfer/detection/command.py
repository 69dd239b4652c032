"""One detection run from checkpoint to result: checks, preflight, training, evaluation, pictures."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from excb.checkpoint.same_run import require_same_run
from excb.console import Reporter
from excb.distributed.collectives import rank, run_on_rank0, world_size
from excb.distributed.signals import StopRequest
from excb.distributed.workers import worker_count
from excb.errors import UserError
from excb.files import json_text
from excb.files.atomic import write_bytes, write_text
from excb.hub.backbone import Backbone
from excb.hub.loading import load
from excb.results.result import Result

from . import drawing
from .coco import scoring
from .coco.annotations import CocoSet
from .engines import open_engine
from .preflight import preflight
from .setup.job import Job
from .setup.settings import OVERFIT_IMAGES, SCHEDULES, DetectionSettings, settings_for

IDENTITY, PREDICTIONS, RESULT = "run.json", "predictions.json", "result.json"  # in a run folder
PICTURES = 8
DEPTHS = {"resnet50": 50, "resnet101": 101, "resnet152": 152}


@dataclass(frozen=True)
class Request:
    """What a user asks for.

    Args:
        checkpoint: what `excb.load` takes.
        network: teacher or student.
        schedule: 1x, 2x, smoke or overfit.
        recipe: ssl or stock.
        engine: a key of `engines.ENGINES`.
        batch: images per step; the schedule's by default.
        options: other settings; nothing is rescaled for them.
        folder: of the run; named after checkpoint and schedule by default.
        workers: number of data loading processes; None for one per core.
        preflight: whether to check first that the loss falls on a few images; None does so for long schedules.
    """

    checkpoint: str
    network: Literal["teacher", "student"] = "teacher"
    schedule: str = "1x"
    recipe: str = "ssl"
    engine: str = "detectron2"
    batch: int | None = None
    options: Mapping[str, Any] | None = None
    folder: Path | None = None
    workers: int | None = None
    preflight: bool | None = None


def check(request: Request) -> None:
    """Refuse what cannot run, without reading data or weights.

    Raises:
        UserError: the engine is not installed, or there is no such schedule, recipe or option.
    """
    open_engine(request.engine)
    settings_for(request.schedule, request.recipe, batch=request.batch, options=request.options)


def prepare(request: Request, train: CocoSet, val: CocoSet, device: torch.device, reporter: Reporter) -> Job:
    """Load and check everything before any work starts.

    Raises:
        UserError: the checkpoint cannot be used for detection, or contradicts the settings.
    """
    check(request)
    backbone = load(request.checkpoint, network=request.network)
    name = backbone.entry.architecture.name
    if name not in DEPTHS:
        raise UserError(
            f"detection takes a {', '.join(DEPTHS)}, and {request.checkpoint} is a {name}: choose another checkpoint"
        )
    settings = _settings(request, backbone)
    if settings.batch % world_size():
        raise UserError(
            f"a batch of {settings.batch} images cannot be divided among {world_size()} processes: set --batch"
        )
    if request.schedule == "overfit":
        train = val = train.clearest(OVERFIT_IMAGES)
    folder = request.folder or Path("runs") / f"detection-{_label(request.checkpoint)}-{request.schedule}"
    workers = worker_count(-1 if request.workers is None else request.workers)
    tensors = backbone.network.state_dict()
    return Job(settings, DEPTHS[name], tensors, train, val, folder, device, workers, reporter)


def _settings(request: Request, backbone: Backbone) -> DetectionSettings:
    """The settings with the checkpoint's normalisation; settings that contradict its weights are refused."""
    colours = {
        name: tuple(round(255 * share, 4) for share in getattr(backbone.transform, name)) for name in ("mean", "std")
    }
    settings = settings_for(
        request.schedule, request.recipe, batch=request.batch, options=colours | dict(request.options or {})
    )
    of_checkpoint = {"input_format": "RGB", "stride_in_1x1": False} | colours
    for name, value in of_checkpoint.items():
        setting = getattr(settings, name)
        if setting != value:
            raise UserError(
                f"{name}={_text(setting)}, but {request.checkpoint} was trained with {_text(value)}: leave it out"
            )
    return settings


def _label(checkpoint: str) -> str:
    """A checkpoint's name, usable as part of a folder name."""
    last = Path(checkpoint).name or "checkpoint"
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in last)


def evaluate(request: Request, job: Job, *, table: bool = True) -> Result | int:
    """Train, or resume the run in the job's folder, and evaluate.

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
    return (
        {names.get(str(name), str(name)): value for name, value in identity.items()}
        if isinstance(identity, dict)
        else {}
    )


def _report(
    request: Request, job: Job, detections: list[dict[str, Any]], differences: tuple[str, ...], seconds: float
) -> Result:
    """Score and draw predictions, and write all files of the result."""
    identity = _identity(request, job)
    predictions = scoring.write_predictions(detections, job.folder / PREDICTIONS)  # first: they took hours
    scores = scoring.score(job.val, detections)
    pictures = drawing.write_pictures(job.val, detections, job.folder / "pictures", number=PICTURES)
    notes = [*differences]
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
    copied = replace(result, predictions=result.predictions | {"file": beside.name})
    write_text(copied.to_json() + "\n", file)
    return [file, beside]


def show(request: Request, job: Job) -> None:
    """Print every option beside Detectron2's stock value, and the size of the run."""
    settings = job.settings
    stock = replace(
        settings_for(request.schedule, "stock", batch=request.batch),
        input_format="BGR",
        stride_in_1x1=True,
        std=(1.0, 1.0, 1.0),
    )
    rows = []
    for entry in fields(settings):
        value, stock_value = getattr(settings, entry.name), getattr(stock, entry.name)
        different = "" if value == stock_value else _text(stock_value)
        source = entry.metadata["source"]
        if entry.name in (request.options or {}):
            source = "command line"
        elif entry.name in SCHEDULES[request.schedule]:
            source = f"schedule {request.schedule}"
        rows.append([entry.name, _text(value), different, source, entry.metadata["doc"]])
    job.reporter.table("", ["option", "value", "stock", "source", "meaning"], rows)
    images, seen = len(job.train.trainable), settings.iterations * settings.batch
    job.reporter.answer(
        f"\n{settings.iterations:,} steps of {settings.batch}, {seen / images:,.1f} epochs of {images:,} images\n"
        f"evaluation on {len(job.val):,} images, {len(job.val.classes)} classes\n"
        f"engine {request.engine}, run folder {job.folder}"
    )


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(f"{item:g}" for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
