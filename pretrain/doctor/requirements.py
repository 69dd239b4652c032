"""The requirements of a recipe: bytes of a checkpoint and of a batch, and the memory and time of one step."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import torch

from excb.console import plural
from excb.distributed.machine import available_memory

from ..distil.teachers import Teacher
from ..plan.fakes import fake_networks, trained, value_bytes
from ..plan.flops import count
from ..plan.frozen_teachers import pass_memory
from ..plan.memory import step_memory
from ..plan.speed import measure_step
from ..plan.trace import trace_step
from ..precision import resolved
from ..recipe import Recipe
from .finding import Finding, size

STEP_LIMIT = 120  # seconds for the measured step, with set-up and warm-up
CPU_FLOPS = 5e10  # at most, for a step measured on a CPU: about a second


def checkpoint_bytes(recipe: Recipe, images: int, teachers: Sequence[Teacher] = ()) -> int:
    """Size of a checkpoint: both networks, the optimizer's state, and an epoch's assignments.

    Args:
        recipe: the recipe.
        images: of the set.
        teachers: the frozen ones that its student learns from; their heads are part of a checkpoint.

    Raises:
        UserError: no such backbone, or it cannot take views of the recipe's sizes.
    """
    width, method = value_bytes(recipe), recipe.method
    _, model = fake_networks(recipe, teachers)
    traced = model.student.centroids.weight.shape[0]
    more = width * (method.clusters - traced) * method.width
    student: int = more + sum(value.nbytes for value in model.student.parameters())
    networks: int = 2 * more + sum(value.nbytes for value in model.state_dict().values())
    learned = width * (trained(model) + method.clusters * method.width * method.clustering)
    states = 2 * learned if recipe.optim.optimizer == "adamw" else student * (recipe.optim.momentum > 0)
    return networks + states + images * (4 * recipe.views.global_views + 8)


def batch_bytes(recipe: Recipe, processes: int) -> int:
    """Size of the crops that one process's workers pass on per step."""
    views = recipe.views
    pixels = views.global_views * views.global_size**2 + views.local_views * views.local_size**2
    return 3 * pixels * recipe.optim.batch // processes


def check_step(recipe: Recipe, device: torch.device, processes: int, teachers: Sequence[Teacher] = ()) -> Finding:
    """Run a step on random images if it fits in memory, and report how long it takes.

    Args:
        recipe: the recipe.
        device: where the run trains.
        processes: of the run.
        teachers: the frozen ones that its student learns from, on the CPU.

    Raises:
        UserError: the batch cannot be split over that many processes, or there is no such backbone.
    """
    recipe = resolved(recipe, device)
    share, where = recipe.micro_batch(processes), f"{device.type} in {recipe.efficiency.precision}"
    if device.type == "cpu":  # a whole batch would take minutes there
        share = max(2, min(share, int(CPU_FLOPS / count(recipe, teachers).flops.image)))
        recipe = recipe.change(efficiency={"accumulate": 1})
    need = step_memory(recipe, share, trace_step(recipe, teachers)).total
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    if (before := pass_memory(recipe, teachers)) > free:
        found = f"not tried: a teacher's features need about {size(before)}, {size(free)} free"
        return Finding("step", "error", found, "lower distil.teacher_size, or learn from a smaller teacher")
    memory = f"{plural(share, 'image')} on {where} need about {size(need)}, {size(free)} free"
    fix = "raise efficiency.accumulate, or set efficiency.checkpointing=true (see `excb-pretrain plan`)"
    if need > free:
        return Finding("step", "error", f"not tried: {memory}", fix)
    try:
        with time_limit(STEP_LIMIT):
            step = measure_step(recipe, share, device, seconds=0, teachers=teachers)
    except TimeoutError:
        fix = "check whether the machine is busy, or the GPU hangs"
        return Finding("step", "error", f"{memory}; no step within {STEP_LIMIT} s", fix)
    except torch.OutOfMemoryError:
        return Finding("step", "error", f"{memory}; out of memory", fix)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        return Finding("step", "error", f"{memory}; it fails: {reason}", "see the checks above")
    return Finding("step", "ok", f"{memory}; a step took {share / step.images_per_second:.2g} s")


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after that many seconds, as soon as the interpreter runs again."""

    def on_alarm(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
