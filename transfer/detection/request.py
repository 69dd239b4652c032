"""What a user asks for, and the detection job that it becomes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from excb.console import Reporter
from excb.distributed.collectives import world_size
from excb.distributed.workers import worker_count
from excb.errors import require
from excb.hub.backbone import Backbone
from excb.hub.loading import load

from ..coco.annotations import CocoSet
from .engines import open_engine
from .setup.job import Job
from .setup.settings import OVERFIT_IMAGES, SCHEDULES, DetectionSettings, settings_for

DEPTHS = {"resnet50": 50, "resnet101": 101, "resnet152": 152}


@dataclass(frozen=True)
class Request:
    """What a user asks for."""

    checkpoint: str  # what `excb.load` takes
    network: Literal["teacher", "student"] = "teacher"  # teacher or student
    schedule: str = "1x"  # 1x, 2x, smoke or overfit
    recipe: str = "ssl"  # ssl or stock
    engine: str = "detectron2"  # a key of `engines.ENGINES`
    batch: int | None = None  # images per step; the schedule's by default
    options: Mapping[str, Any] | None = None  # other settings; nothing is rescaled for them
    folder: Path | None = None  # of the run; named after checkpoint and schedule by default
    workers: int | None = None  # number of data loading processes; None for one per core
    # whether to check first that the loss falls on a few images; None: for 1x and 2x only
    preflight: bool | None = None


def check(request: Request, *, engine: bool = True) -> None:
    """Refuse what cannot run, without reading data or weights.

    Args:
        request: what the user asks for.
        engine: refuse an engine that is not installed, too.

    Raises:
        UserError: the engine is not installed, or there is no such schedule, recipe or option.
    """
    if engine:
        open_engine(request.engine)
    settings_for(request.schedule, request.recipe, batch=request.batch, options=request.options)


def prepare(
    request: Request, train: CocoSet, val: CocoSet, device: torch.device, reporter: Reporter, *, engine: bool = True
) -> Job:
    """Load and check everything before any work starts; without `engine`, all but that it is installed.

    Raises:
        UserError: the checkpoint cannot be used for detection, or contradicts the settings.
    """
    check(request, engine=engine)
    backbone = load(request.checkpoint, network=request.network)
    name = backbone.entry.architecture.name
    require(
        name in DEPTHS,
        f"detection takes a {', '.join(DEPTHS)}, and {request.checkpoint} is a {name}: choose another checkpoint",
    )
    settings = _settings(request, backbone)
    require(
        settings.batch % world_size() == 0,
        f"a batch of {settings.batch} images cannot be divided among {world_size()} processes: set --batch",
    )
    if request.schedule == "overfit":
        train = val = train.clearest(OVERFIT_IMAGES)
    label = re.sub(r"[^\w.-]", "-", Path(request.checkpoint).name or "checkpoint")
    folder = request.folder or Path("runs") / f"detection-{label}-{request.schedule}"
    workers = worker_count(-1 if request.workers is None else request.workers)
    return Job(settings, DEPTHS[name], backbone.network.state_dict(), train, val, folder, device, workers, reporter)


def _settings(request: Request, backbone: Backbone) -> DetectionSettings:
    """The settings with the checkpoint's normalisation; settings that contradict its weights are refused."""
    colours = {
        name: tuple(round(255 * share, 4) for share in getattr(backbone.transform, name)) for name in ("mean", "std")
    }
    settings = settings_for(
        request.schedule, request.recipe, batch=request.batch, options=colours | dict(request.options or {})
    )
    for name, value in ({"input_format": "RGB", "stride_in_1x1": False} | colours).items():
        setting = getattr(settings, name)
        require(
            setting == value,
            f"{name}={_text(setting)}, but {request.checkpoint} was trained with {_text(value)}: leave it out",
        )
    return settings


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
