"""Training steps on a fake CUDA device: what each phase launches, moves and waits for, recipe by recipe.

`python -m tests.pretrain.fake_steps [RECIPE ...]` prints the two tables of docs/performance.md; tests compare
what they count with these.
"""

import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from excb.distributed.collectives import world_size
from excb.method import ExCB
from excb.pretrain import step as step_module
from excb.pretrain.data.batch import ViewBatch
from excb.pretrain.data.prefetch import prefetch_to_device
from excb.pretrain.data.views import ViewMaker
from excb.pretrain.distil.teachers import Teacher
from excb.pretrain.initialise import build_model
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan.speed import build_trainer
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
# Not in the tables: they are long to count, and launch what rn50_400ep and vits16_800ep do, but for a few operations.
UNSTATED = ("photos", "vits16_800ep_official")
# Launches and MB of a step before kernels of ours took the augmentation: counted on the parent of commit 9faa24a.
BEFORE = {
    "rn50_400ep": (2448, 468_930),
    "rn50_400ep_official": (2409, 465_647),
    "rn50_400ep_2x224": (1504, 334_541),
    "vits16_800ep": (4430, 619_117),
    "adapt": (1180, 52_673),
    "rn18_small": (1609, 3_887),
    "photos_small": (528, 555),
    "quickstart": (528, 380),
    "conv4_tiny": (479, 226),
    "rn10_tiny": (755, 392),
}
DRAWN = 16  # samples of a batch that have parameters of their own: a fake device has no values, so none depends on them
DOCUMENT = Path(__file__).parents[2] / "docs" / "performance.md"


def batch_of(recipe: Recipe, images: int, *, seed: int = 3) -> ViewBatch:
    """A batch of black pictures in pinned memory, with parameters as they are drawn in training."""
    views = recipe.views
    maker = ViewMaker(replace(views, global_size=8, local_size=8), seed=seed, epochs=3)
    picture = np.zeros((8, 8, 3), np.uint8)
    every = range(views.global_views + views.local_views)
    drawn = [maker.cut(picture, epoch=0, sample=sample, views=every) for sample in range(min(images, DRAWN))]
    rows = list(itertools.islice(itertools.cycle(drawn), images))
    parameters = [torch.from_numpy(np.stack([row[column] for row in rows], 1)) for column in range(1, len(rows[0]), 2)]
    crops = [
        torch.zeros(len(part), images, side, side, 3, dtype=torch.uint8)
        for part, side in zip(parameters, (views.global_size, views.local_size), strict=False)
    ]
    local_crops, local_parameters = (crops[1], parameters[1]) if views.local_views else (None, None)
    samples = torch.arange(images)
    return ViewBatch(crops[0], parameters[0], local_crops, local_parameters, samples, samples, []).pin_memory()


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


def record(recipe: Recipe, images: int, *, steps: int = 2, teachers: Sequence[Teacher] = ()) -> Record:
    """The record of the last of a recipe's first steps on a fake device; from the second on, all are the same.

    Args:
        recipe: of the run.
        images: of this process.
        steps: how many to take.
        teachers: frozen ones to learn from, on the CPU.
    """
    recipe = recipe.change(optim={"batch": images * world_size()})
    with fake_cuda() as cuda:
        if teachers:
            trainer = build_trainer(recipe, CUDA, teachers)
        else:
            trainer = trainer_for(build_model(recipe), recipe, CUDA, steps_per_epoch=4)
        labels: Any = SimpleNamespace(labels=None)
        statistics = EpochStatistics(labels, recipe, samples=steps * images, device=CUDA)
        with phases(cuda):
            for step, batch in enumerate(prefetch_to_device([batch_of(recipe, images)] * steps, CUDA)):
                cuda.reset()
                statistics.add(trainer.step(batch, step)[0], batch)
        return cuda.record


def figures(costs: dict[str, Cost]) -> tuple[dict[str, float], dict[str, float]]:
    """Launches and MB of every phase of a step, and of all together."""
    launches: dict[str, float] = {phase: costs.get(phase, Cost()).launches for phase in COLUMNS}
    moved = {phase: costs.get(phase, Cost()).bytes / 1e6 for phase in COLUMNS}
    return launches | {"all": sum(launches.values())}, moved | {"all": sum(moved.values())}


def stated(unit: str) -> dict[str, dict[str, float]]:
    """The table of docs/performance.md that counts "launches" or "MB": figures by recipe, and by phase and "all"."""
    text = DOCUMENT.read_text(encoding="utf-8")
    lines = text[text.index(f"\n| {unit} |") :].strip().split("\n\n")[0].splitlines()
    titles, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    columns = [titles.index(title) for title in (*COLUMNS, "all")]
    return {row[0]: {titles[at]: float(row[at].replace(",", "")) for at in columns} for row in rows}


def gpu_recipe(name: str, *overrides: str) -> Recipe:
    """A recipe as it would run on a new GPU: in bf16."""
    return apply(find_recipe(name), ["efficiency.precision=bf16", *overrides])


def print_tables(names: Collection[str]) -> None:
    """Print what a step launches, then what it moves, as docs/performance.md shows them."""
    done = {name: _counted(name) for name in names}
    for at, unit in enumerate(("launches", "MB")):
        titles = [unit, "images", *COLUMNS, "all", "before", "waits"]
        rows = [titles, ["---", *["---:"] * (len(titles) - 1)]]
        for name, (counted, waits) in done.items():
            before = _rounded(BEFORE[name][at]) if name in BEFORE else "-"
            rows.append([name, str(FAMILIES[name]), *map(_rounded, counted[at].values()), before, str(waits)])
        print("\n".join(f"| {' | '.join(row)} |" for row in rows), end="\n\n")  # noqa: T201


def _counted(name: str) -> tuple[tuple[dict[str, float], dict[str, float]], int]:
    """Figures of a recipe's step, and its waits; the record, with all its tensors, is dropped."""
    done = record(gpu_recipe(name), FAMILIES[name])
    return figures(done.costs), sum(done.unexpected(ALLOWED).values())


def _rounded(figure: float) -> str:
    """Three digits or more, so that rounding is far below what the tests tolerate."""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


if __name__ == "__main__":
    print_tables(sys.argv[1:] or [name for name in FAMILIES if name not in UNSTATED])
