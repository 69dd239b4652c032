"""`excb-eval detection`: its record."""

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.console import Reporter, plural
from excb.errors import USER_ERROR, UserError, is_rank0, require
from excb.option_parser import require_use

from ..protocol import Family, Fields, FigureKind, InSuite, Measurement, Protocol, SuiteStep
from ..reporting.fields import named, without
from .options import DetectionInSuite, DetectionOptions, DetectorInputs

if TYPE_CHECKING:
    import torch

    from excb.results.beside import FileBeside
    from excb.results.result import ResultRecord

    from ..published.claim import ClaimImages
    from ..shell import Shell
    from ..task import Task
    from .task import DetectionTask

_FIGURE = re.compile(r"(bbox|segm|voc)_(AP\w*)")
_METRICS = {"bbox": "box ", "segm": "mask ", "voc": ""}
_IGNORED = ("mean", "std", "input_format", "stride_in_1x1", "save_every")  # settings that define no protocol
_SMOKE = ("smoke", "overfit")  # schedules that measure nothing
_ITERATIONS, _BATCH = {"1x": 90_000, "2x": 180_000}, 16


def _open(
    inputs: DetectorInputs, options: DetectionOptions, device: "torch.device", reporter: Reporter
) -> "DetectionTask":
    from excb.distributed.collectives import all_succeed, run_on_rank0
    from excb.images.image_set import with_doubts

    from ..coco.reading import open_coco
    from ..data.concerns import concerns
    from .task import DetectionTask

    require(options.repair is None, "repair evaluates nothing: use the command `excb-eval detection --repair DIR`")
    names = ("train_json", "train_images", "val_json", "val_images", "check_all")
    places = {name: getattr(options, name) for name in names}
    masks = options.settings().masks if "masks" in options.overrides else None
    train, val = all_succeed(partial(open_coco, options.data, **places, masks=masks, note=reporter.warn))
    found = run_on_rank0(lambda: concerns(train, val))
    (train.beside.of("train") + val.beside.of("test") + found).tell(reporter)
    val = with_doubts(val, found)
    return all_succeed(lambda: DetectionTask.prepare(inputs, options, train, val, device=device, reporter=reporter))


def _instead(options: DetectionOptions, shell: "Shell") -> int | None:
    if options.repair is None:
        return None
    from .repairing import repair

    options.check(None)
    return repair(options, options.repair, shell)


def _measure(task: "DetectionTask", options: DetectionOptions, reporter: Reporter) -> Measurement:
    from .protocol import measure

    return measure(task, options, reporter)


def _dry_run(task: "DetectionTask", options: DetectionOptions, reporter: Reporter, as_json: bool) -> int:
    from .dry_run import plan_as_dict, show
    from .protocol import starts_anew

    missing, is_new = _missing(options), starts_anew(task, options)
    if is_rank0() and as_json:
        answer = {"can_run": not missing, "why": missing, "resumes": not is_new}
        reporter.answer(json.dumps(answer | plan_as_dict(options, task.job), indent=2))
    elif is_rank0():
        resumes = "" if is_new else f": it resumes the run in {task.job.folder}"
        reporter.answer(f"it cannot run: {missing}" if missing else f"it can run{resumes}")
        show(options, task.job)
    return USER_ERROR if missing else 0


def _missing(options: DetectionOptions) -> str:
    """Why the engine cannot be used here."""
    from .engines import open_engine

    try:
        open_engine(options.engine)
    except UserError as error:
        return str(error)
    return ""


def _kind_of(figure: str) -> FigureKind | None:
    if (match := _FIGURE.fullmatch(figure)) is None:
        return None
    return FigureKind("voc" if match[1] == "voc" else "detection", _METRICS[match[1]] + match[2])


def _result_fields(settings: Fields, _kind: FigureKind) -> Fields:
    settings = dict(settings)
    detector = settings.pop("settings", {})
    return named(settings | without(detector, _IGNORED))


def _claim_fields(options: Fields, _kind: FigureKind) -> Fields:
    from .setup.settings import settings_for, stored

    settings = stored(settings_for(options["schedule"], options["recipe"]))
    fields = {"engine": "detectron2", "schedule": options["schedule"], "recipe": options["recipe"]}
    return fields | without(settings, (*_IGNORED, "seed"))


def _cost(options: Mapping[str, Any], images: "ClaimImages") -> str:
    seen = _ITERATIONS[options["schedule"]] * _BATCH
    return f"{plural(seen, 'training image')} of up to 1,333 pixels, then {images.test or 0:,} to detect in"


def _objection(result: "ResultRecord") -> str:
    schedule = result.settings.get("schedule")
    return f"schedule {schedule} shows that the machinery works, but measures nothing" if schedule in _SMOKE else ""


def _steps(task: "Task", options: DetectionInSuite, depends_on: Mapping[str, Any]) -> list[SuiteStep]:
    from .task import DEPTHS

    own = DetectionOptions(data=options.coco, schedule=options.schedule, engine=options.engine)
    own.check(None)  # refuses unknown schedules
    require_use(options, "schedule", "engine", used=options.coco is not None, why="is of detection, which needs --coco")
    network, skipped = task.backbone.entry.architecture.name, ""
    if network not in DEPTHS:
        skipped = f"it takes a {' or '.join(DEPTHS)}, not a {network}"
    elif options.coco is None:
        skipped = "name images for it with --coco DIR"
    if skipped or options.coco is None:
        return [SuiteStep("detection", "Detection", "detection", own, skipped=skipped)]
    depends_on = {name: depends_on[name] for name in ("weights", "network", "version")}
    depends_on |= {"images": _fingerprints(options.coco)}
    return [SuiteStep("detection", "Detection", "detection", own, depends_on=depends_on)]


def _fingerprints(folder: Path) -> dict[str, list[str]]:
    from excb.distributed.collectives import all_succeed
    from excb.features.extraction import files_hash

    from ..coco.reading import open_coco

    train, val = all_succeed(lambda: open_coco(folder))
    return {name: [images.fingerprint, files_hash(images)] for name, images in (("train", train), ("val", val))}


def _beside(_label_sets: bool) -> "list[FileBeside]":
    from excb.results.beside import text_beside

    return [text_beside("{}.predictions.json", "detections", '"image_id":', '"bbox":', '"score":')]


DETECTION = Protocol(
    name="detection",
    help="Mask R-CNN, or Faster R-CNN where there are no masks, on COCO or any set in its format",
    options=DetectionOptions,
    shared=DetectorInputs,
    open=_open,
    beside=_beside,
    measure=_measure,
    dry_run=_dry_run,
    instead=_instead,
    families=(
        Family("detection", "Detection and segmentation", "detection"),
        Family("voc", "Pascal VOC detection", "voc"),
    ),
    kind_of=_kind_of,
    labels="boxes",
    state="run",
    cost=_cost,
    result_fields=_result_fields,
    claim_fields=_claim_fields,
    objection=_objection,
    missing=_missing,
    in_suite=InSuite(names=("detection",), steps=_steps, options=DetectionInSuite),
    group="training",
    examples=(
        "detection --ckpt rn50_400ep --data COCO --gpus 8",
        "detection --ckpt runs/a --data COCO --engine torchvision --dry-run",
        "detection --data EXPORTED --repair CLEAN",
    ),
)
