"""Samples for both engines: images resized and flipped with their objects, in batches named by seed and step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from excb import seeding
from excb.distributed.workers import follow_parent, watch_workers
from excb.errors import UserError

from ..coco.annotations import CocoSet
from .settings import DetectionSettings


@dataclass(frozen=True)
class Sample:
    """One image as a detector sees it, with its objects; H and W are after resizing.

    Args:
        image: [3, H, W] uint8, RGB.
        boxes: [N, 4] float32, left, top, right, bottom.
        labels: [N] int64, from 0.
        masks: [N, H, W] bool.
        image_id: the set's own.
        size: original height and width.
    """

    image: Tensor
    boxes: Tensor
    labels: Tensor
    masks: Tensor
    image_id: int
    size: tuple[int, int]


def resized(height: int, width: int, *, short: int, longest: int) -> tuple[int, int]:
    """Height and width with the shorter side `short`, or less where the longer one would exceed `longest`.

    The arithmetic is that of Detectron2's ResizeShortestEdge, rounding included; but no side vanishes.
    """
    scale = short / min(height, width)
    sides = [float(short), scale * width] if height < width else [scale * height, float(short)]
    if max(sides) > longest:
        shrink = longest / max(sides)
        sides = [side * shrink for side in sides]
    return max(1, int(sides[0] + 0.5)), max(1, int(sides[1] + 0.5))


def training_sample(images: CocoSet, index: int, settings: DetectionSettings, random: np.random.Generator) -> Sample:
    """One image, its shorter side drawn from the settings, flipped half of the time, with the objects to learn.

    Raises:
        UserError: it cannot be read, or is not of the annotated size.
    """
    entry = images.images[index]
    short = int(random.choice(settings.min_sizes))
    flip = bool(random.random() < 0.5) and settings.flip
    height, width = resized(entry.height, entry.width, short=short, longest=settings.max_size)
    pixels = np.asarray(images.open(index).resize((width, height), Image.Resampling.BILINEAR))
    scale = np.array((width / entry.width, height / entry.height))
    objects = [annotation for annotation in entry.annotations if annotation.trainable]
    boxes = np.array([annotation.box for annotation in objects], dtype=np.float64).reshape(-1, 2, 2)
    boxes[:, 1] += boxes[:, 0]
    boxes *= scale
    if flip:
        pixels = pixels[:, ::-1]
        boxes[..., 0] = width - boxes[:, ::-1, 0]
    boxes = boxes.reshape(-1, 4).clip(0, (width, height, width, height))
    kept = np.flatnonzero((boxes[:, 2:] - boxes[:, :2] > 1e-5).all(1))
    objects = [objects[place] for place in kept]
    masks = np.zeros((len(objects), height, width), dtype=bool)
    for mask, annotation in zip(masks, objects, strict=True):
        mask[:] = annotation.mask_at(scale, height, width, flip=flip)
    return Sample(
        _tensor(pixels),
        torch.from_numpy(boxes[kept]).float(),
        torch.tensor([annotation.label for annotation in objects], dtype=torch.int64),
        torch.from_numpy(masks),
        entry.id,
        (entry.height, entry.width),
    )


def evaluation_sample(images: CocoSet, index: int, settings: DetectionSettings) -> Sample:
    """One image at the size of evaluation, without objects.

    Raises:
        UserError: it cannot be read, or is not of the annotated size.
    """
    entry = images.images[index]
    height, width = resized(entry.height, entry.width, short=settings.test_size, longest=settings.max_size)
    pixels = np.asarray(images.open(index).resize((width, height), Image.Resampling.BILINEAR))
    none = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, height, width, dtype=torch.bool)
    return Sample(_tensor(pixels), *none, entry.id, (entry.height, entry.width))


def _tensor(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


# ---------------------------------------------------------------------------------------------------------------------
# Batches
# ---------------------------------------------------------------------------------------------------------------------


class Loader:
    """This process's share of every training batch, from step `start` on, without end.

    Images come in a new order every epoch; those wider than tall, and the others, fill batches of their own, as in
    Detectron2, so that little is padded. A batch depends on the settings' seed, its step and the number of processes.

    Args:
        images: the training set; images without an object to learn are left out.
        settings: sizes, batch and seed.
        start: the first step.
        rank: of this process.
        world: number of processes; divides the batch.
        workers: processes that read images.

    Raises:
        UserError: the batch cannot be divided, nothing is to be learnt, or (later) an image cannot be read.
    """

    def __init__(
        self,
        images: CocoSet,
        settings: DetectionSettings,
        *,
        start: int = 0,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
    ) -> None:
        if settings.batch % world:
            raise UserError(f"a batch of {settings.batch} cannot be divided by {world} processes: change batch")
        self._images, self._settings, self._workers = images.trainable, settings, workers
        if not len(self._images):
            raise UserError(f"{images.source} has no object to train on among the {len(images)} images chosen")
        self._plan = _Plan(self._images, settings, start, rank, world)

    def __iter__(self) -> Iterator[list[Sample]]:
        """Batches of samples."""
        return _load(partial(_named_sample, self._images, self._settings), self._plan, self._workers)


def evaluation_samples(
    images: CocoSet, settings: DetectionSettings, *, rank: int = 0, world: int = 1, workers: int = 0
) -> Iterator[Sample]:
    """This process's share of the images, in order: every so-many-th.

    Raises:
        UserError: an image cannot be read.
    """
    share = [[index] for index in range(rank, len(images), world)]
    return chain.from_iterable(_load(partial(evaluation_sample, images, settings=settings), share, workers))


class _Plan(Sampler[list[tuple[int, int, int]]]):
    """(step, place in the whole batch, image) for all images of one process's batches."""

    def __init__(self, images: CocoSet, settings: DetectionSettings, start: int, rank: int, world: int) -> None:
        self._wide = [image.width > image.height for image in images.images]
        self._seed, self._share = settings.seed, settings.batch // world
        self._start, self._rank, self._world = start, rank, world

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        groups: tuple[list[int], list[int]] = ([], [])
        step = 0
        for index in islice(self._order(), self._rank, None, self._world):
            group = groups[self._wide[index]]
            group.append(index)
            if len(group) == self._share:
                # The way to `start` is walked, not stored: a second for a million images.
                if step >= self._start:
                    yield [(step, self._rank * self._share + place, index) for place, index in enumerate(group)]
                step += 1
                group.clear()

    def _order(self) -> Iterator[int]:
        for epoch in count():
            random = seeding.generator(seeding.Purpose.TRANSFER_ORDER, self._seed, epoch)
            yield from random.permutation(len(self._wide)).tolist()


def _named_sample(images: CocoSet, settings: DetectionSettings, name: tuple[int, int, int]) -> Sample:
    step, place, index = name
    random = seeding.generator(seeding.Purpose.TRANSFER_VIEW, settings.seed, step, place)
    return training_sample(images, index, settings, random)


class _Samples(Dataset["Sample | str"]):
    """What `make` gives for each item; for a user's error its line, which a worker would bury in a traceback."""

    def __init__(self, make: Callable[[Any], Sample]) -> None:
        self._make = make

    def __getitem__(self, item: Any) -> Sample | str:
        try:
            return self._make(item)
        except UserError as error:
            return str(error)


def _load(
    make: Callable[[Any], Sample], plan: Sampler[list[tuple[int, int, int]]] | list[list[int]], workers: int
) -> Iterator[list[Sample]]:
    loader = DataLoader(
        _Samples(make),
        batch_sampler=plan,
        collate_fn=list,
        num_workers=workers,
        worker_init_fn=follow_parent,
        generator=torch.Generator(),  # or it would take a number from torch's own, which engines draw from
    )
    for batch in watch_workers(loader):
        for sample in batch:
            if isinstance(sample, str):
                raise UserError(sample)
        yield batch
