"""What a recipe needs of a machine, for `excb-pretrain doctor`: bytes of a checkpoint and of a batch, and one step."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from excb.distributed.machine import available_memory

from ..plan.flops import count, fake_networks, value_bytes
from ..plan.memory import step_memory
from ..plan.speed import measure_step
from ..recipe import Recipe
from .finding import Finding, plural, size

STEP_LIMIT = 120  # seconds that the measured step may take, its set-up and the warming up with it
CPU_FLOPS = 5e10  # of a step measured on a CPU, at most: about a second


def checkpoint_bytes(recipe: Recipe, images: int) -> int:
    """Size of a checkpoint: both networks, the optimizer's state, and an epoch's assignments.

    Raises:
        UserError: no such backbone, or it cannot take views of the recipe's sizes.
    """
    width, method = value_bytes(recipe), recipe.method
    _, model = fake_networks(recipe)
    few = model.student.centroids.weight.shape[0]
    more = width * (method.clusters - few) * method.width
    student: int = more + sum(value.nbytes for value in model.student.parameters())
    networks: int = 2 * more + sum(value.nbytes for value in model.state_dict().values())
    states = 2 if recipe.optim.optimizer == "adamw" else int(recipe.optim.momentum > 0)
    return networks + states * student + images * (4 * recipe.views.global_views + 8)


def batch_bytes(recipe: Recipe, processes: int) -> int:
    """Size of the crops that one process's workers hand over for a step."""
    views = recipe.views
    pixels = views.global_views * views.global_size**2 + views.local_views * views.local_size**2
    return 3 * pixels * recipe.optim.batch // processes


def check_step(recipe: Recipe, device: torch.device, processes: int) -> Finding:
    """Take a step of random images where the recipe's memory fits, and say how long it takes.

    Raises:
        UserError: the recipe cannot be trained by so many processes, or has no such backbone.
    """
    share, where = recipe.micro_batch(processes), device.type
    if device.type == "cpu":  # a whole batch would take minutes there
        share = max(2, min(share, int(CPU_FLOPS / count(recipe).flops.image)))
        recipe = recipe.change(efficiency={"accumulate": 1})
    need = step_memory(recipe, share).total
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    told = f"{plural(share, 'image')} on {where} need about {size(need)} of {size(free)}"
    fix = "raise efficiency.accumulate, or set efficiency.checkpointing=true (`excb-pretrain plan` counts)"
    if need > free:
        return Finding("step", "error", f"not tried: {told}", fix)
    try:
        with time_limit(STEP_LIMIT):
            step = measure_step(recipe, share, device, seconds=0)
    except TimeoutError:
        return Finding(
            "step", "error", f"{told}; no step within {STEP_LIMIT} s", "is the machine busy, or the GPU hung?"
        )
    except torch.OutOfMemoryError:
        return Finding("step", "error", f"{told}; the memory did not suffice", fix)
    except RuntimeError as error:
        return Finding("step", "error", f"{told}; it fails: {str(error).partition(chr(10))[0]}", "see the checks above")
    return Finding("step", "ok", f"{told}; a step took {share / step.images_per_second:.2g} s")


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after so many seconds, as soon as Python has its turn."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
