"""`excb-pretrain plan`: what a recipe's run takes: parameters, FLOPs, launches, memory, communication."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import torch

from excb.console import Reporter, plural
from excb.distributed.machine import choose_device
from excb.distributed.workers import worker_count
from excb.errors import require
from excb.hub.backbone import Backbone
from excb.images.image_set import CodedImages
from excb.images.pixels import pixels_of

from ..channels import fit_channels
from ..distil.teachers import Teacher
from ..precision import resolved
from ..recipe import Recipe
from ..run.rules import breaches_on
from . import frozen_teachers
from .devices import Gpu
from .flops import Counts, communication, count
from .memory import NOT_COUNTED, plain_loss_head, step_memory
from .speed import measure_loader, measure_step
from .tables import print_plan
from .trace import Trace, trace_step

IMAGENET = 1_281_167  # training images of ImageNet-1k, where no folder is named
ROOM = 0.9  # of a GPU's memory that a run may fill
STEP_SECONDS, LOADER_SECONDS, TEACHER_SECONDS = 15.0, 10.0, 5.0  # of measuring
BRIEF_SECONDS = 2.0  # of steps before a dry run ends
SLOW = "fp16 is many times slower than fp32 on a CPU: set efficiency.precision=auto, or time it by `plan --measure`"
NO_GPU = "no GPU to measure on (--measure measures on the CPU)"

Report = dict[str, Any]


def show_plan(
    recipe: Recipe,
    gpus: int | None,
    images: CodedImages | None,
    reporter: Reporter,
    *,
    measure: bool,
    as_json: bool,
    gpu: Gpu | None = None,
) -> int:
    """Print the plan of a recipe for as many processes as `gpus` (None or 0: one), on images if they are there.

    Without a GPU, steps are measured on the CPU only if `measure` is set. With `gpu`, say whether it fits there.

    Raises:
        UserError: the recipe cannot run with this number of processes, or on these images.
    """
    print_plan_report(
        plan_run(recipe, gpus, images, measure=measure, gpu=gpu, reporter=reporter), reporter, as_json=as_json
    )
    return 0


def print_plan_report(report: Report, reporter: Reporter, *, as_json: bool) -> None:
    """Print what `plan_run` found: as JSON, or as tables."""
    if as_json:
        reporter.answer(json.dumps(report, indent=2))
    else:
        print_plan(report, reporter)


def plan_run(
    recipe: Recipe,
    gpus: int | None,
    images: CodedImages | None,
    *,
    measure: bool | Literal["step"],
    gpu: Gpu | None = None,
    precision: str | None = None,
    reporter: Reporter | None = None,
    teachers: Mapping[str, Backbone] | None = None,
) -> Report:
    """The plan of a recipe, as `--json` prints it.

    Args:
        recipe: as for `show_plan`, and so are arguments and errors that are not named here.
        gpus: processes.
        images: the set.
        measure: also on the CPU; "step" is steps alone there, for two seconds.
        gpu: one that is not here.
        precision: that the run will be in; None leaves it to the recipe and the device.
        reporter: of progress.
        teachers: frozen ones that are in memory, by name; the others are loaded as a run loads them.
    """
    if images is not None:
        recipe = fit_channels(recipe, pixels_of(images).channels)
    asked, recipe = recipe.efficiency.precision, _assumed(recipe)
    if precision is not None:
        recipe = recipe.change(efficiency={"precision": precision})
    settled = _with_precision(recipe, gpus, gpu)
    settled.micro_batch(max(1, gpus or 1))  # what cannot run is refused before networks are traced
    settled.steps_per_epoch(_size(images))
    frozen = frozen_teachers.frozen_teachers_of(settled, teachers)
    with (reporter or Reporter(quiet=True)).progress("tracing the networks", 2) as bar:  # seconds each
        counts = count(settled, frozen)
        bar.advance()
        trace = trace_step(settled, frozen)
        bar.advance()
    report = count_run(settled, counts, trace, max(1, gpus or 1), images)
    report["teachers"] = frozen_teachers.teachers_report(settled, frozen, _size(images))
    device = _device(recipe, measure=bool(measure))
    brief = measure == "step" and device is not None and device.type == "cpu"
    if brief and recipe.efficiency.precision == "fp16":
        report["measured"] = measure_run(recipe, report, None, None) | {"missing": SLOW}
    else:
        report["measured"] = measure_run(
            recipe, report, None if brief else images, device, frozen, seconds=BRIEF_SECONDS if brief else None
        )
    report["estimate"] = None if gpu is None else fit_to_gpu(settled, report, gpu)
    report["rules"] = [] if images is None else [breach.to_dict() for breach in breaches_on(settled, images)]
    return report | {"precision_asked": asked}


def _with_precision(recipe: Recipe, gpus: int | None, gpu: Gpu | None) -> Recipe:
    """The recipe with the precision that `auto` will be where it runs; GPUs that are not here have bf16."""
    device = _device(recipe, measure=True)
    assert device is not None
    elsewhere = device.type == "cpu" and (bool(gpus) or recipe.efficiency.device == "cuda")
    if recipe.efficiency.precision != "auto" or (gpu is None and not elsewhere):
        return resolved(recipe, device)
    return recipe.change(efficiency={"precision": "bf16" if gpu is None or gpu.bf16 else "fp32"})


def _assumed(recipe: Recipe) -> Recipe:
    """The recipe with some mean and deviation where a run measures them: they cost nothing."""
    views, channels = recipe.views, recipe.channels
    return recipe.change(views={"mean": views.mean or (0.5,) * channels, "std": views.std or (0.25,) * channels})


def _size(images: CodedImages | None) -> int:
    return IMAGENET if images is None else len(images)


def count_run(recipe: Recipe, counts: Counts, trace: Trace, processes: int, images: CodedImages | None) -> Report:
    """The report without measurements: everything that needs no run."""
    share, optim = recipe.micro_batch(processes), recipe.optim
    size = _size(images)
    steps = optim.epochs * recipe.steps_per_epoch(size)
    memory = step_memory(recipe, share, trace)
    sent = communication(recipe, counts, processes)
    flops = asdict(counts.flops) | {"image": counts.flops.image, "step": counts.flops.image * optim.batch}
    return {
        "recipe": recipe.name,
        "precision": recipe.efficiency.precision,
        "checkpointing": recipe.efficiency.checkpointing,
        "processes": processes,
        "batch": optim.batch,
        "micro_batch": share,
        "set": size,
        "set_given": images is not None,
        "steps": steps,
        "parameters": counts.parameters,
        "flops": flops | {"run": flops["step"] * steps},
        "launches": {"forward": trace.forward, "backward": trace.backward},
        "memory": asdict(memory) | {"total": memory.total},
        "memory_not_counted": NOT_COUNTED,
        "plain_loss_head": plain_loss_head(recipe, share),
        "communication": asdict(sent) | {"total": sent.total},
    }


def _device(recipe: Recipe, *, measure: bool) -> torch.device | None:
    if recipe.efficiency.device != "cpu" and torch.cuda.is_available():
        return choose_device(recipe.efficiency.device)
    return torch.device("cpu") if measure else None


def measure_run(
    recipe: Recipe,
    counted: Mapping[str, Any],
    images: CodedImages | None,
    device: torch.device | None,
    teachers: Sequence[Teacher] = (),
    *,
    seconds: float | None = None,
) -> Report:
    """Measure for about half a minute, or steps for so many seconds.

    What was not measured is None, and `missing` says why.
    """
    seconds = STEP_SECONDS if seconds is None else seconds
    measured: Report = dict.fromkeys(("device", "step", "loader", "hours", "limit", "teachers", "missing"))
    if device is None:
        return measured | {"missing": NO_GPU}
    on_gpu = device.type == "cuda"
    measured["device"] = (
        torch.cuda.get_device_name(device) if on_gpu else f"CPU, {plural(torch.get_num_threads(), 'thread')}"
    )
    share = counted["batch"] // counted["processes"]
    if not on_gpu:  # a whole batch would take minutes there
        share = max(2, min(share, int(frozen_teachers.CPU_FLOPS / counted["flops"]["image"])))
        recipe = recipe.change(efficiency={"accumulate": 1})
    try:
        step = measure_step(recipe, share, device, seconds=seconds, teachers=teachers)
        if counted["teachers"] is not None:
            measured["teachers"] = frozen_teachers.measure_once(
                counted["teachers"],
                teachers,
                device,
                processes=counted["processes"],
                seconds=min(seconds, TEACHER_SECONDS),
            )
    except torch.OutOfMemoryError:
        return measured | {
            "missing": f"{plural(share, 'image does', 'images do')} not fit into this GPU: raise efficiency.accumulate"
        }
    measured["step"], speed = asdict(step), step.images_per_second
    if images is not None:
        here = min(counted["processes"], max(1, torch.cuda.device_count()))
        wanted = recipe.efficiency.workers
        workers = wanted if wanted >= 0 else max(1, min(worker_count(-1), (os.cpu_count() or 1) // here))
        loader = measure_loader(recipe, images, workers=workers, pin_memory=on_gpu, seconds=LOADER_SECONDS)
        measured["loader"] = asdict(loader)
        measured["limit"] = "device" if speed < loader.images_per_second else "loader"
        speed = min(speed, loader.images_per_second)
    measured["hours"] = counted["steps"] * counted["batch"] / (speed * counted["processes"]) / 3600
    return measured


def fit_to_gpu(recipe: Recipe, counted: Mapping[str, Any], gpu: Gpu) -> Report:
    """Whether a run fits into the memory of a GPU that is not here, by the plan's count.

    Raises:
        UserError: the GPU does not compute in the recipe's precision.
    """
    teachers = counted["teachers"]
    require(
        recipe.efficiency.precision != "bf16" or gpu.bf16,
        f"a {gpu.name} does not compute in bf16: set efficiency.precision=fp16 or fp32",
    )
    needed = max(counted["memory"]["total"], 0 if teachers is None else teachers["once"]["memory"])
    memory = gpu.memory * 2**30
    return {"device": gpu.name, "memory": memory, "needed": needed, "fits": needed < ROOM * memory}
