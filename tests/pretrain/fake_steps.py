"""Training steps on a fake CUDA device: what each phase launches, moves and waits for, recipe by recipe.

`python -m tests.pretrain.fake_steps [RECIPE ...]` prints the table of docs/performance.md.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from excb.distributed.collectives import world_size
from excb.method import ExCB
from excb.pretrain import step as step_module
from excb.pretrain.data.batch import Batch
from excb.pretrain.data.prefetch import prefetch_to_device
from excb.pretrain.data.views import ViewMaker
from excb.pretrain.initialise import build_model
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.recipe import Recipe
from excb.pretrain.run.journal import EpochStatistics
from excb.pretrain.step import Trainer, trainer_for
from tests.fake_cuda import CUDA, Cost, FakeCuda, Record, fake_cuda

# Every phase of a step by the function that it is; what is in none of them is "rest".
PHASES: dict[str, tuple[Any, str]] = {
    "views": (Trainer, "views"),
    "networks": (ExCB, "forward"),
    "loss": (ExCB, "_cluster"),
    "backward": (Tensor, "backward"),
    "optimizer": (step_module, "conditional_step"),
    "teacher, sizes": (ExCB, "update"),
    "logging": (EpochStatistics, "add"),
}
COLUMNS = (*PHASES, "rest")
# What the CPU may wait for in a step, and why.
ALLOWED = {
    "excb.pretrain.step:StepCheck.read": "whether the step before this one was finite, while this one runs",
}
FAMILIES = {  # a recipe of every family, with the images of one GPU: the paper's runs share 1,024 among four
    "rn50_400ep": 256,
    "rn50_400ep_official": 256,
    "rn50_400ep_2x224": 256,
    "vits16_800ep": 256,
    "vits16_800ep_official": 256,
    "photos": 256,
    "adapt": 64,
    "rn18_small": 64,
    "photos_small": 64,
    "quickstart": 128,
    "conv4_tiny": 64,
    "rn10_tiny": 64,
}


def batch_of(recipe: Recipe, images: int, *, seed: int = 3) -> Batch:
    """A batch of black pictures in pinned memory, with parameters as they are drawn in training."""
    views = recipe.views
    maker = ViewMaker(replace(views, global_size=8, local_size=8), seed=seed, epochs=3)
    picture = np.zeros((8, 8, 3), np.uint8)
    every = range(views.global_views + views.local_views)
    rows = [maker.cut(picture, epoch=0, sample=sample, views=every) for sample in range(images)]
    parameters = [torch.from_numpy(np.stack([row[column] for row in rows], 1)) for column in range(1, len(rows[0]), 2)]
    crops = [
        torch.zeros(len(part), images, side, side, 3, dtype=torch.uint8)
        for part, side in zip(parameters, (views.global_size, views.local_size), strict=False)
    ]
    local_crops, local_parameters = (crops[1], parameters[1]) if views.local_views else (None, None)
    samples = torch.arange(images)
    return Batch(crops[0], parameters[0], local_crops, local_parameters, samples, samples, []).pin_memory()


@contextmanager
def phases(cuda: FakeCuda) -> Iterator[None]:
    """Count every phase of a step under its name."""

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            with cuda.phase(name):
                return function(*args, **keywords)

        return call

    with ExitStack() as stack, cuda.phase("rest"):
        for name, (owner, function) in PHASES.items():
            stack.enter_context(mock.patch.object(owner, function, counted(name, getattr(owner, function))))
        yield


def record(recipe: Recipe, images: int, *, steps: int = 2) -> Record:
    """What the last of a recipe's first steps does on a fake device; from the second on, all do the same.

    Args:
        recipe: of the run.
        images: of this process.
        steps: how many to take.
    """
    recipe = recipe.change(optim={"batch": images * world_size()})
    with fake_cuda() as cuda:
        trainer = trainer_for(build_model(recipe), recipe, CUDA, steps_per_epoch=4)
        labels: Any = SimpleNamespace(labels=None)
        statistics = EpochStatistics(labels, recipe, samples=steps * images, device=CUDA)
        with phases(cuda):
            for step, batch in enumerate(prefetch_to_device([batch_of(recipe, images)] * steps, CUDA)):
                cuda.reset()
                statistics.add(trainer.step(batch, step)[0], batch)
        return cuda.record


def rows(names: Iterable[str]) -> Iterator[list[str]]:
    """Cells of the table: launches of every phase, then of all, bytes and waits."""
    for name in names:
        done = record(gpu_recipe(name), FAMILIES[name])
        costs = [done.costs.get(phase, Cost()) for phase in COLUMNS]
        total, moved = sum(cost.launches for cost in costs), sum(cost.bytes for cost in costs)
        waits = sum(done.unexpected(ALLOWED).values())
        launches = [str(cost.launches) for cost in costs]
        yield [name, str(FAMILIES[name]), *launches, str(total), f"{moved / 1e9:.2f}", str(waits)]


def gpu_recipe(name: str, *overrides: str) -> Recipe:
    """A recipe as it would run on a new GPU: in bf16."""
    return apply(find_recipe(name), ["efficiency.precision=bf16", *overrides])


if __name__ == "__main__":
    titles = ["recipe", "images", *COLUMNS, "launches", "GB", "waits"]
    for cells in chain([titles, ["---", *["---:"] * (len(titles) - 1)]], rows(sys.argv[1:] or FAMILIES)):
        print(f"| {' | '.join(cells)} |", flush=True)  # noqa: T201
