"""`excb-pretrain plan`: what a recipe's run will cost: parameters, FLOPs, memory, communication, hours."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import torch

from excb.console import Reporter, duration
from excb.distributed.machine import choose_device
from excb.distributed.workers import worker_count
from excb.errors import require
from excb.hub.backbone import Backbone
from excb.images.image_set import CodedImages

from ..precision import resolved
from ..recipe import Recipe
from .devices import Gpu, hours
from .flops import Counts, communication, count
from .memory import NOT_COUNTED, Memory, plain_loss_head, step_memory
from .peaks import PEAKS
from .scaling import print_scaling, scaling
from .speed import measure_loader, measure_step
from .trace import Trace, trace_step

IMAGENET = 1_281_167  # training images of ImageNet-1k, where no folder is named
ROOM = 0.9  # of a GPU's memory that a run may fill
STEP_SECONDS, LOADER_SECONDS = 15.0, 10.0  # of measuring
CPU_FLOPS = 2e11  # of a step measured on a CPU, at most: some seconds
NO_GPU = "no GPU to measure on (--measure measures on the CPU)"

Report = dict[str, Any]


def plan(
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

    Without a GPU, steps are measured on the CPU only if `measure` is set. With `gpu`, hours on that one are estimated.

    Raises:
        UserError: the recipe cannot run with this number of processes, or on these images.
    """
    show(plan_run(recipe, gpus, images, measure=measure, gpu=gpu, reporter=reporter), reporter, as_json=as_json)
    return 0


def show(report: Report, reporter: Reporter, *, as_json: bool) -> None:
    """Print what `plan_run` found: as JSON, or as tables."""
    if as_json:
        reporter.answer(json.dumps(report, indent=2))
    else:
        _print(report, reporter)


def plan_run(
    recipe: Recipe,
    gpus: int | None,
    images: CodedImages | None,
    *,
    measure: bool,
    gpu: Gpu | None = None,
    reporter: Reporter | None = None,
    teachers: Mapping[str, Backbone] | None = None,
) -> Report:
    """The plan of a recipe, as `--json` prints it; arguments and errors are those of `plan`."""
    settled = _with_precision(recipe, gpus, gpu)
    settled.micro_batch(max(1, gpus or 1))  # what cannot run is refused before networks are traced
    settled.steps_per_epoch(_size(images))
    with (reporter or Reporter(quiet=True)).progress("tracing the networks", 2) as bar:  # seconds each
        counts = count(settled)
        bar.advance()
        trace = trace_step(settled)
        bar.advance()
    report = count_run(settled, counts, trace, max(1, gpus or 1), images)
    report["measured"] = measure_run(recipe, report, images, _device(recipe, measure=measure))
    report["estimate"] = None if gpu is None else estimate(settled, report, gpu)
    peaks = None if gpu is None else PEAKS.get(gpu.name)
    report["model"] = None if peaks is None else scaling(settled, counts, trace, peaks)
    return report | {"precision_asked": recipe.efficiency.precision}


def _with_precision(recipe: Recipe, gpus: int | None, gpu: Gpu | None) -> Recipe:
    """The recipe with the precision that `auto` will be where it runs; GPUs that are not here have bf16."""
    device = _device(recipe, measure=True)
    assert device is not None
    if recipe.efficiency.precision != "auto" or (gpu is None and device.type == "cuda"):
        return resolved(recipe, device)
    bf16 = gpu.bf16 if gpu is not None else bool(gpus) or recipe.efficiency.device == "cuda"
    return recipe.change(efficiency={"precision": "bf16" if bf16 else "fp32"})


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
    recipe: Recipe, counted: Mapping[str, Any], images: CodedImages | None, device: torch.device | None
) -> Report:
    """Measure for about half a minute; whatever was not measured is None, and `missing` says why."""
    measured: Report = dict.fromkeys(("device", "step", "loader", "hours", "limit", "missing"))
    if device is None:
        return measured | {"missing": NO_GPU}
    on_gpu = device.type == "cuda"
    measured["device"] = torch.cuda.get_device_name(device) if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    share = counted["batch"] // counted["processes"]
    if not on_gpu:  # a whole batch would take minutes there
        share = max(2, min(share, int(CPU_FLOPS / counted["flops"]["image"])))
        recipe = recipe.change(efficiency={"accumulate": 1})
    try:
        step = measure_step(recipe, share, device, seconds=STEP_SECONDS)
    except torch.OutOfMemoryError:
        return measured | {"missing": f"{share} images do not fit into this GPU: raise efficiency.accumulate"}
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


def estimate(recipe: Recipe, counted: Mapping[str, Any], gpu: Gpu) -> Report:
    """Hours and memory on a GPU that is not here, from its data sheet; nothing of it is measured.

    Raises:
        UserError: the GPU does not compute in the recipe's precision.
    """
    precision, total = recipe.efficiency.precision, counted["memory"]["total"]
    require(
        precision != "bf16" or gpu.bf16, f"a {gpu.name} does not compute in bf16: set efficiency.precision=fp16 or fp32"
    )
    rate = gpu.rate(precision, tf32=recipe.efficiency.tf32)
    return {
        "device": gpu.name,
        "measured": False,
        "hours": hours(counted["flops"]["run"] / 1e12, rate * counted["processes"]),
        "tflops": rate,
        "memory": gpu.memory * 2**30,
        "needed": total,
        "fits": total < ROOM * gpu.memory * 2**30,
    }


def _print_estimate(report: Report, reporter: Reporter) -> None:
    estimated, processes = report["estimate"], report["processes"]
    several = f"{processes} x " if processes > 1 else ""
    reporter.answer(
        f"\nEstimated for {several}{estimated['device']}, not measured: {duration(3600 * estimated['hours'])} at "
        f"{estimated['tflops']:,.3g} TFLOP/s each, which may be wrong by a factor of two; reading images not counted"
    )
    needed, memory = _bytes(estimated["needed"]), _bytes(estimated["memory"])
    advice = "raise efficiency.accumulate or --gpus, or set efficiency.precision=bf16 or efficiency.checkpointing=true"
    verdict = "it fits" if estimated["fits"] else f"it does not fit: {advice}"
    reporter.answer(f"memory: {needed} of {memory} at most, {verdict}")


def _print(report: Report, reporter: Reporter) -> None:
    processes, share = report["processes"], report["micro_batch"]
    precision = report["precision"] + (" (auto)" if report["precision_asked"] == "auto" else "")
    again = ", blocks recomputed in the backward pass" if report["checkpointing"] else ""
    whose = "" if report["set_given"] else " of ImageNet (--data DIR for others)"
    reporter.answer(
        f"{report['recipe']} on {processes} process{'es' if processes > 1 else ''}, {precision}{again}: "
        f"{report['batch']:,} images a step, {share:,} in a micro-batch of a process\n"
        f"{report['steps']:,} steps with {report['set']:,} images{whose}\n"
    )
    student, teacher = report["parameters"]["student"], report["parameters"]["teacher"]
    rows = [[part, f"{student[part]:,}", f"{teacher[part]:,}"] for part in student]
    rows.append(["total", f"{sum(student.values()):,}", f"{sum(teacher.values()):,}"])
    reporter.table("Parameters", ["", "student", "teacher"], rows)
    flops, batch = report["flops"], report["batch"]
    kinds = {"student": "student", "teacher": "teacher", "loss head": "loss_head", "total": "image"}
    rows = [[name, _flops(flops[key]), _flops(flops[key] * batch)] for name, key in kinds.items()]
    title = "\nFLOPs, forward and backward, without what is computed again (a multiply-add is two)"
    reporter.table(title, ["", "an image", "a step"], rows)
    reporter.answer(f"{_flops(flops['run'])} for the whole run")
    documented = {part.name: part.metadata["doc"] for part in fields(Memory)}
    memory = report["memory"]
    rows = [[f"{name.replace('_', ' ')}: {doc}", _bytes(memory[name])] for name, doc in documented.items()]
    rows.append(["total, at most", _bytes(memory["total"])])
    reporter.table("\nMemory of each process", ["", "bytes"], rows)
    reporter.answer(f"not counted: {report['memory_not_counted']}")
    plain = _bytes(report["plain_loss_head"])
    reporter.answer(f"the equations as written would hold {plain} of rows x clusters at least")
    _print_communication(report, reporter)
    _print_measured(report, reporter)
    if report["model"] is not None:
        print_scaling(report["model"], report["batch"], report["estimate"]["device"], reporter)
    if report["estimate"] is not None:
        _print_estimate(report, reporter)


def _print_communication(report: Report, reporter: Reporter) -> None:
    sent = report["communication"]
    if report["processes"] == 1:
        reporter.answer("\nCommunication: none, one process")
        return
    rows = [
        ["gradients", _bytes(sent["gradients"])],
        [f"BatchNorm statistics, {sent['exchanges']} exchanges", _bytes(sent["batchnorm"])],
        ["cluster sizes", _bytes(sent["sizes"])],
        *([["balancing", _bytes(sent["balancing"])]] if sent["balancing"] else []),
        *([["contrast", _bytes(sent["contrast"])]] if sent["contrast"] else []),
        ["total", _bytes(sent["total"])],
    ]
    reporter.table("\nSent by each process in a step", ["", "bytes"], rows)


def _print_measured(report: Report, reporter: Reporter) -> None:
    measured, processes = report["measured"], report["processes"]
    if measured["missing"] is not None:
        reporter.answer(f"\nnothing was measured: {measured['missing']}")
        return
    step, loader = measured["step"], measured["loader"]
    peak = f", {_bytes(step['peak_memory'])} at most" if step["peak_memory"] is not None else ""
    rows = [[f"steps alone, {step['images']:,} random images each{peak}", f"{step['images_per_second']:,.3g} images/s"]]
    if loader is not None:
        rows.append([f"loader alone, {loader['workers']} workers", f"{loader['images_per_second']:,.3g} images/s"])
    scaling = f", if {processes} processes are {processes} times as fast" if processes > 1 else ""
    rows.append([f"the whole run{scaling}", duration(3600 * measured["hours"])])
    rows.append(["the limit is", f"the {measured['limit']}" if measured["limit"] else "not known without --data DIR"])
    reporter.table(f"\nMeasured here in one process ({measured['device']})", ["", ""], rows)


def _bytes(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def _flops(count: float) -> str:
    for unit, size in (("Z", 1e21), ("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if count >= size:
            return f"{count / size:,.4g} {unit}FLOP"
    return f"{count / 1e6:,.4g} MFLOP"
