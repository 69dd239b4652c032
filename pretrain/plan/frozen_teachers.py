"""The cost of frozen teachers: every image once before training, at their own size, or every view in every step.

The latter is counted with the step (`flops.count`, `trace.trace_step`). Here is what comes before it, and a summary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from excb.hub.backbone import Backbone
from excb.networks.backbone import image_channels

from ..distil.kept import BATCH
from ..distil.teachers import Teacher
from ..recipe import Recipe
from ..training import teaching
from .fakes import without_values
from .speed import run_for
from .trace import IMAGES, Alive, tensors_of

ROW_BYTES = 4  # of a feature in the cache
CPU_FLOPS = 2e11  # of a pass or a step measured on a CPU, at most: some seconds

Report = dict[str, Any]


def frozen_teachers_of(recipe: Recipe, given: Mapping[str, Backbone] | None = None) -> list[Teacher]:
    """The teachers of a recipe on the CPU, as a run loads them.

    Args:
        recipe: the recipe.
        given: those that are in memory, by name; they are copied.

    Raises:
        UserError: none is named where one is needed, or one cannot be loaded or cannot teach what is compared.
    """
    teaching.require_named(recipe)
    return teaching.load_teaching(recipe, torch.device("cpu"), given).teachers


def teachers_report(recipe: Recipe, teachers: Sequence[Teacher], images: int) -> Report | None:
    """The teachers and their cost, for a set of `images` images; None without teachers.

    `networks` has a row for each, with the FLOPs of one input. `views` are those of an image that teachers see in every
    step. `once` has the images that they see before training, what that takes (in memory, of passes of `BATCH` images),
    and the bytes of features that the cache keeps.

    Raises:
        UserError: what a teacher takes cannot be counted.
    """
    if not teachers:
        return None
    once, views = teaching.images_once(recipe.distil, images), recipe.views
    in_step = {"image": 0, "view": views.global_views + views.local_views, "other_view": views.global_views}
    rows = [_row(teacher) for teacher in teachers]
    return {
        "sees": recipe.distil.teacher_sees,
        "views": in_step[recipe.distil.teacher_sees],
        "networks": rows,
        "once": {
            "images": once,
            "flops": once * sum(row["flops"] for row in rows),
            "memory": pass_memory(recipe, teachers),
            "kept": cache_bytes(teachers, once),
        },
    }


def cache_bytes(teachers: Sequence[Teacher], images: int) -> int:
    """Bytes of the features that the cache keeps."""
    return images * ROW_BYTES * sum(teacher.width for teacher in teachers)


def pass_memory(recipe: Recipe, teachers: Sequence[Teacher]) -> int:
    """The most bytes of a pass of `BATCH` images before training, with weights and inputs; 0 if there is none.

    Raises:
        UserError: what a teacher takes cannot be counted.
    """
    if not teaching.images_once(recipe.distil, BATCH):
        return 0
    return max((_memory(teacher) for teacher in teachers), default=0)


def _memory(teacher: Teacher) -> int:
    weights, fake = tensors_of(teacher.backbone), FakeTensorMode(allow_non_fake_inputs=True)
    frozen = [fake.from_tensor(tensor) for tensor in weights]  # kept, so that the pass meets these fakes
    alive = Alive(tensor.untyped_storage() for tensor in frozen)
    with fake, alive:
        _pass(teacher)
    return sum(tensor.nbytes for tensor in weights) + max(size.at(BATCH) for size in alive.sizes)


def _row(teacher: Teacher) -> Report:
    # Attention in parts, as `flops` counts it.
    fake, counter = FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False)
    with fake, sdpa_kernel(SDPBackend.MATH), counter:
        _pass(teacher)
    return {
        "name": teacher.name,
        "parameters": sum(parameter.numel() for parameter in teacher.backbone.parameters()),
        "input": teacher.transform.crop,
        "width": teacher.width,
        "flops": counter.get_total_flops() // IMAGES,
    }


@torch.no_grad()
def _pass(teacher: Teacher) -> None:
    """Pass `IMAGES` images; call it in a fake mode."""
    side = teacher.transform.crop
    with without_values():
        channels = image_channels(teacher.backbone)
        teacher.backbone(torch.empty(IMAGES, channels, side, side, dtype=_dtype(teacher.backbone)))


def _dtype(network: nn.Module) -> torch.dtype:
    return next((parameter.dtype for parameter in network.parameters()), torch.float32)


def measure_once(
    report: Mapping[str, Any], teachers: Sequence[Teacher], device: torch.device, *, processes: int, seconds: float
) -> Report:
    """The speed of every teacher on random images, and the hours for all that they see once, which processes share.

    Args:
        report: of `teachers_report`.
        teachers: on the device.
        device: where they are measured.
        processes: of the run.
        seconds: of measuring each, about.
    """
    speeds: dict[str, float] = {}
    for teacher, row in zip(teachers, report["networks"], strict=True):
        images = BATCH if device.type == "cuda" else max(1, min(BATCH, int(CPU_FLOPS / max(1, row["flops"]))))
        speeds[teacher.name] = _images_per_second(teacher.backbone, row["input"], images, device, seconds)
    seconds_once = sum(report["once"]["images"] / speed for speed in speeds.values()) / processes
    return {"images_per_second": speeds, "hours": seconds_once / 3600}


@torch.no_grad()
def _images_per_second(network: nn.Module, side: int, images: int, device: torch.device, seconds: float) -> float:
    inputs = torch.rand(images, image_channels(network), side, side, device=device, dtype=_dtype(network))
    passes, elapsed = run_for(lambda _number: network(inputs), device, seconds)
    return passes * images / elapsed
