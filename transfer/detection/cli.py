"""`excb-eval detection`: its options and its record."""

import argparse
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.cli import Parser, local_path
from excb.console import Reporter
from excb.distributed.slurm import HELP as SLURM_HELP
from excb.errors import USER_ERROR, UserError, is_rank0

from ..old_protocol import Evaluation, InSuite, Measured, Protocol, SuiteStep
from ..parallel import in_parallel
from ..protocol import Family, Fields, FigureKind
from ..reporting.fields import named, without

if TYPE_CHECKING:
    import torch

    from excb.results.result import Result

    from ..coco.annotations import CocoSet
    from ..published.claim import ClaimImages
    from ..task import Task
    from .request import Request

_FIGURE = re.compile(r"(bbox|segm|voc)_(AP\w*)")
_METRICS = {"bbox": "box ", "segm": "mask ", "voc": ""}
_IGNORED = ("mean", "std", "input_format", "stride_in_1x1", "save_every")  # settings that define no protocol
_SMOKE = ("smoke", "overfit")  # schedules that measure nothing
_ITERATIONS, _BATCH = {"1x": 90_000, "2x": 180_000}, 16


def _add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--ckpt", required=True, metavar="PATH", help="a ResNet-50, -101 or -152, as for the other protocols")
    add("--network", choices=("teacher", "student"), default="teacher", help="default: teacher")
    add("--data", type=Path, metavar="DIR", help="annotations/instances_{train,val}2017.json, train2017/ and val2017/")
    for split in ("train", "val"):
        add(f"--{split}-json", type=Path, metavar="FILE", help=f"annotations of the {split} images")
        add(f"--{split}-images", type=Path, metavar="DIR", help=f"the {split} images")
    add("--check-all", action="store_true", help="check every image before training, not only a sample")
    add("--schedule", default="1x", metavar="NAME", help="1x (default), 2x, smoke (minutes) or overfit (a few images)")
    add("--recipe", default="ssl", metavar="NAME", help="ssl (default, as in papers on SSL) or stock (Detectron2's)")
    add("--engine", choices=("detectron2", "torchvision"), default="detectron2", help="default: detectron2")
    add("--batch", type=int, metavar="B", help="images per step; lr and schedule scale with it (default: 16)")
    add("--set", action="append", default=[], metavar="OPTION=VALUE", help="any other option; --dry-run lists all")
    add("--run", type=Path, metavar="DIR", help="the run's folder (default: runs/detection-CKPT-SCHEDULE)")
    add("--preflight", action="store_true", default=None, help="overfit a few images first (default for 1x and 2x)")
    add("--skip-preflight", dest="preflight", action="store_false", help="start training immediately")
    add("--device", default="auto", metavar="NAME", help="cpu, cuda or auto (default)")
    add("--gpus", type=int, metavar="N", help="one process on each of N GPUs; use torchrun for several machines")
    add("--slurm", metavar="NAME=VALUE,...", help=SLURM_HELP)
    add("--workers", type=int, default=None, metavar="N", help="data loading processes")
    add("--dry-run", action="store_true", help="check everything and list all options, but do not train")
    add("--out", type=local_path, metavar="FILE.json", help="write a copy of the result to this file")
    add("--json", action="store_true", help="print the result as JSON instead of a table")
    add("--quiet", action="store_true", help="print neither notes nor progress")


def _work(args: argparse.Namespace, device: "torch.device") -> int:
    from excb.distributed.collectives import all_succeed, run_on_rank0

    from . import command
    from .request import check, prepare, show

    reporter = Reporter(quiet=args.quiet or not is_rank0())
    request = _request_of(args)
    check(request, engine=not args.dry_run)  # before a large annotation file is read
    train, val = _open_images(args)
    job = all_succeed(lambda: prepare(request, train, val, device, reporter, engine=not args.dry_run))
    if args.dry_run:
        missing = _missing(args)
        if is_rank0():
            reporter.answer(f"it cannot run: {missing}" if missing else "it can run")
            show(request, job)
        return USER_ERROR if missing else 0
    result = command.evaluate(request, job, table=not args.json)
    if isinstance(result, int):
        return result
    if args.out is not None:
        files = run_on_rank0(lambda: command.copy_result(result, job.folder, args.out))
        reporter.note(f"wrote {', '.join(map(str, files))}")
    if args.json and is_rank0():
        reporter.answer(result.to_json())
    return 0


def _open(
    args: argparse.Namespace,
    device: "torch.device",
    reporter: Reporter,
    *,
    task: "Task | None" = None,  # noqa: ARG001 - see `protocol.OpenEvaluation`
    results: Path | None = None,  # noqa: ARG001
) -> Evaluation:
    from excb.distributed.collectives import all_succeed, run_on_rank0

    from . import command
    from .request import prepare

    train, val = _open_images(args)

    def measure(table: bool) -> Measured:
        request = _request_of(args)
        job = all_succeed(lambda: prepare(request, train, val, device, reporter))
        result = command.evaluate(request, job, table=table)
        if isinstance(result, int):
            raise UserError.on_all_ranks("detection was stopped: the same command resumes it")
        return result, lambda result, file: run_on_rank0(lambda: command.copy_result(result, job.folder, file))

    sets = {"train": train, "test": val}.items()
    data: dict[str, Any] = {name: {"images": len(part), "fingerprint": part.fingerprint} for name, part in sets}
    return Evaluation(data | {"classes": len(val.classes)}, measure)


def _missing(args: argparse.Namespace) -> str:
    """Why the engine cannot be used here."""
    from .request import check

    try:
        check(_request_of(args))
    except UserError as error:
        return str(error)
    return ""


def _request_of(args: argparse.Namespace) -> "Request":
    from .request import Request
    from .setup.settings import parse_option

    names = ("network", "schedule", "recipe", "engine", "batch", "workers", "preflight")
    same = {name: getattr(args, name) for name in names}
    return Request(args.ckpt, options=dict(map(parse_option, args.set)), folder=args.run, **same)


def _open_images(args: argparse.Namespace) -> "tuple[CocoSet, CocoSet]":
    from excb.distributed.collectives import all_succeed

    from ..coco.reading import open_coco

    names = ("train_json", "train_images", "val_json", "val_images", "check_all")
    return all_succeed(lambda: open_coco(args.data, **{name: getattr(args, name) for name in names}))


def _kind_of(figure: str) -> FigureKind | None:
    if (match := _FIGURE.fullmatch(figure)) is None:
        return None
    return FigureKind("voc" if match[1] == "voc" else "detection", _METRICS[match[1]] + match[2])


def _result_fields(settings: Fields, _kind: FigureKind) -> Fields:
    settings = dict(settings)
    detector = settings.pop("settings", {})
    return named(settings | without(detector, _IGNORED))


def _claim_fields(options: Fields, _kind: FigureKind) -> Fields:
    from .setup.settings import settings_for

    settings = asdict(settings_for(options["schedule"], options["recipe"]))
    fields = {"engine": "detectron2", "schedule": options["schedule"], "recipe": options["recipe"]}
    return fields | without(settings, (*_IGNORED, "seed"))


def _cost(options: Mapping[str, Any], images: "ClaimImages") -> str:
    seen = _ITERATIONS[options["schedule"]] * _BATCH
    return f"{seen:,} training images of up to 1,333 pixels, then {images.test or 0:,} to detect in"


def _objection(result: "Result") -> str:
    schedule = result.settings.get("schedule")
    return f"schedule {schedule} shows that the machinery works, but measures nothing" if schedule in _SMOKE else ""


def _add_suite_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--coco", type=Path, metavar="DIR", help="images for detection, in COCO's layout")
    add("--schedule", default="1x", metavar="NAME", help="schedule of detection (default: 1x)")
    add("--engine", choices=("detectron2", "torchvision"), default="detectron2", help="engine of detection")


def _steps(task: "Task", args: argparse.Namespace, depends_on: Mapping[str, Any]) -> list[SuiteStep]:
    from .request import DEPTHS
    from .setup.settings import settings_for

    settings_for(args.schedule)  # refuses unknown schedules
    network, skipped = task.backbone.entry.architecture.name, ""
    if network not in DEPTHS:
        skipped = f"it takes a {' or '.join(DEPTHS)}, not a {network}"
    elif args.coco is None:
        skipped = "name images for it with --coco DIR"
    if skipped:
        return [SuiteStep("detection", "Detection", ["detection"], skipped=skipped)]
    options = ["--data", str(args.coco), "--schedule", args.schedule, "--engine", args.engine]
    depends_on = {name: depends_on[name] for name in ("weights", "network", "version")}
    depends_on |= {"images": _fingerprints(args.coco)}
    return [SuiteStep("detection", "Detection", ["detection", *options], depends_on=depends_on)]


def _fingerprints(folder: Path) -> dict[str, str]:
    from excb.distributed.collectives import all_succeed

    from ..coco.reading import open_coco

    train, val = all_succeed(lambda: open_coco(folder))
    return {"train": train.fingerprint, "val": val.fingerprint}


DETECTION = Protocol(
    name="detection",
    help="Mask R-CNN on COCO, or on any set in its format",
    add_options=_add_options,
    run=in_parallel(_work),
    open=_open,
    families=(
        Family("detection", "Detection and segmentation", "detection"),
        Family("voc", "Pascal VOC detection", "voc"),
    ),
    kind_of=_kind_of,
    labels="boxes",
    state="--run",
    cost=_cost,
    result_fields=_result_fields,
    claim_fields=_claim_fields,
    objection=_objection,
    missing=_missing,
    in_suite=InSuite(names=("detection",), steps=_steps, add_options=_add_suite_options),
    group="training",
    examples=(
        "detection --ckpt rn50_400ep --data COCO --gpus 8",
        "detection --ckpt runs/a --data COCO --engine torchvision --dry-run",
    ),
)
