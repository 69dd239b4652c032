"""Speed of training steps alone and of the image loader alone, measured for some seconds."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from excb import seeding
from excb.distributed.machine import peak_memory
from excb.features.cache import CachedFeatures
from excb.images.image_set import CodedImages

from ..data.batch import Item, ViewBatch, collate
from ..data.loader import loader
from ..data.sampler import SampleRef
from ..data.views import ViewMaker
from ..distil.kept import KeptTargets
from ..distil.teachers import Teacher, ViewTargets
from ..initialise import build_model
from ..recipe import Recipe
from ..step import TargetSource, Trainer, trainer_for
from .fakes import value_type

STEPS_PER_EPOCH = 1000  # of the schedules: of no matter for speed
SIDE = 256  # of random images, pixels
DIFFERENT = 16  # random images in a batch; they repeat
READ_TOGETHER = 32  # images that a worker reads before it hands them over


@dataclass(frozen=True)
class StepSpeed:
    """Steps on images in memory."""

    images_per_second: float
    images: int  # in each step
    steps: int  # measured
    peak_memory: int | None  # bytes, on a GPU


@dataclass(frozen=True)
class LoaderSpeed:
    """The loader alone."""

    images_per_second: float
    workers: int


def build_trainer(recipe: Recipe, device: torch.device, teachers: Sequence[Teacher] = ()) -> Trainer:
    """A run's trainer with new weights.

    Args:
        recipe: the recipe.
        device: where it trains.
        teachers: the frozen ones that its student learns from; they are moved there.

    Raises:
        UserError: no such backbone, it cannot take views of the recipe's sizes, or has no blocks to recompute.
    """
    released = recipe.change(adapt={"warmup_epochs": 0.0, "release_epochs": 0.0})  # most steps of a run are these
    model, targets = build_model(released, teachers), None
    if teachers:
        for teacher in teachers:
            teacher.backbone.to(device)
        targets = _targets(recipe, teachers, device)
    return trainer_for(model, released, device, steps_per_epoch=STEPS_PER_EPOCH, targets=targets)


def _targets(recipe: Recipe, teachers: Sequence[Teacher], device: torch.device) -> TargetSource:
    """Random features in the place of those kept of images, or what teachers make of every view."""
    settings, views = recipe.distil, recipe.views
    if settings.teacher_sees != "image":
        return ViewTargets(teachers, settings, mean=views.mean, std=views.std, device=device)
    random = np.random.default_rng(recipe.run.seed)
    rows = [random.standard_normal((DIFFERENT, each.width), dtype=np.float32) for each in teachers]
    return KeptTargets([CachedFeatures([each]) for each in rows], device=device, dtype=value_type(recipe))


def random_batch(recipe: Recipe, images: int) -> ViewBatch:
    """Crops of random images with the recipe's random parameters."""
    views, maker = recipe.views, ViewMaker(recipe.views, seed=recipe.run.seed, epochs=recipe.optim.epochs)
    ranges = [range(views.global_views), range(views.global_views, views.global_views + views.local_views)]
    random = np.random.default_rng(recipe.run.seed)
    different: list[Item] = []
    for sample in range(min(images, DIFFERENT)):
        image = random.integers(0, 256, (SIDE, SIDE, recipe.channels), dtype=np.uint8)
        arrays = [maker.cut(image, epoch=0, sample=sample, views=each) for each in ranges if each]
        different.append(Item(SampleRef(0, sample, sample), sample, list(itertools.chain(*arrays)), []))
    return collate(list(itertools.islice(itertools.cycle(different), images)))


def measure_step(
    recipe: Recipe, images: int, device: torch.device, *, seconds: float, teachers: Sequence[Teacher] = ()
) -> StepSpeed:
    """Take steps of `images` images for some seconds, at least one, after one to warm up.

    Args:
        recipe: the recipe.
        images: of a step.
        device: where they are taken.
        seconds: of measuring, about.
        teachers: as for `build_trainer`.

    Raises:
        UserError: as `build_trainer`.
        torch.OutOfMemoryError: the device has too little memory.
    """
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.manual_seed(seeding.fold(seeding.Purpose.WEIGHTS, recipe.run.seed))
        trainer, batch = build_trainer(recipe, device, teachers), random_batch(recipe, images)
        if on_gpu:
            batch = batch.pin_memory()
            torch.cuda.reset_peak_memory_stats(device)
        steps, elapsed = run_for(lambda number: trainer.step(batch, number), device, seconds)
    return StepSpeed(steps * images / elapsed, images, steps, peak_memory(device) if on_gpu else None)


def run_for(work: Callable[[int], object], device: torch.device, seconds: float) -> tuple[int, float]:
    """Repeat work, given its number, for some seconds: how often, and the seconds that it took.

    A first time, which warms up and compiles, does not count.
    """
    times, elapsed, start = -1, 0.0, 0.0
    while times < 1 or elapsed < seconds:
        work(times + 1)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times += 1
        if times == 0:
            start = time.perf_counter()
        elapsed = time.perf_counter() - start
    return times, elapsed


def measure_loader(
    recipe: Recipe, images: CodedImages, *, workers: int, pin_memory: bool, seconds: float
) -> LoaderSpeed:
    """Read a set's images, and cut their views, for some seconds once all workers are at work."""
    batch = min(READ_TOGETHER, len(images))
    recipe, stop = recipe.change(optim={"batch": batch}), 10**9 // batch  # more steps than can be read
    iterator = iter(loader(images, recipe, start=0, stop=stop, workers=workers, pin_memory=pin_memory))
    for _ in range(max(1, workers)):
        next(iterator)
    start, read = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds or not read:
        read += len(next(iterator).samples)
    return LoaderSpeed(read / elapsed, workers)
