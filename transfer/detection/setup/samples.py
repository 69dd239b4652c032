"""Samples for all engines: images resized and flipped with their objects, in batches fixed by seed and step."""

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
from excb.console import plural
from excb.distributed.workers import follow_parent, watch_workers
from excb.errors import UserError

from ...coco.annotations import CocoSet
from .settings import DetectionSettings


@dataclass(frozen=True)
class Sample:
    """One image as a detector's input, with its objects; H and W are after resizing."""

    image: Tensor  # [3, H, W] uint8, RGB
    boxes: Tensor  # [N, 4] float32, left, top, right, bottom
    labels: Tensor  # [N] int64, from 0
    masks: Tensor  # [N, H, W] bool; [N, 0, 0] where boxes alone are learned
    image_id: int  # id in the annotation file
    size: tuple[int, int]  # original height and width


def resized(height: int, width: int, *, short: int, longest: int) -> tuple[int, int]:
    """Height and width with the shorter side `short`, or less if the longer side would exceed `longest`.

    The arithmetic is that of Detectron2's ResizeShortestEdge, rounding included, except that no side becomes 0.
    """
    scale = short / min(height, width)
    sides = [float(short), scale * width] if height < width else [scale * height, float(short)]
    if max(sides) > longest:
        shrink = longest / max(sides)
        sides = [side * shrink for side in sides]
    return max(1, int(sides[0] + 0.5)), max(1, int(sides[1] + 0.5))


def training_sample(images: CocoSet, index: int, settings: DetectionSettings, random: np.random.Generator) -> Sample:
    """One image with its trainable objects, resized to a shorter side drawn from the settings and flipped at random.

    Raises:
        UserError: it cannot be read, or its size differs from the annotated one.
    """
    entry = images.images[index]
    short = int(random.choice(settings.min_sizes))
    flip = bool(random.random() < 0.5) and settings.flip
    height, width = resized(entry.height, entry.width, short=short, longest=settings.max_size)
    pixels = np.asarray(images.open(index).resize((width, height), Image.Resampling.BILINEAR))
    scale = np.array((width / entry.width, height / entry.height))
    objects = images.objects(index)
    boxes = np.array([annotation.box for annotation in objects], dtype=np.float64).reshape(-1, 2, 2)
    boxes[:, 1] += boxes[:, 0]
    boxes *= scale
    if flip:
        pixels = pixels[:, ::-1]
        boxes[..., 0] = width - boxes[:, ::-1, 0]
    boxes = boxes.reshape(-1, 4).clip(0, (width, height, width, height))
    kept = np.flatnonzero((boxes[:, 2:] - boxes[:, :2] > 1e-5).all(1))
    objects = [objects[place] for place in kept]
    masks = np.zeros((len(objects), *((height, width) if images.masks else (0, 0))), dtype=bool)
    for mask, annotation in zip(masks, objects, strict=True) if images.masks else ():
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
    """One image at the evaluation size, without objects.

    Raises:
        UserError: it cannot be read, or its size differs from the annotated one.
    """
    entry = images.images[index]
    height, width = resized(entry.height, entry.width, short=settings.test_size, longest=settings.max_size)
    pixels = np.asarray(images.open(index).resize((width, height), Image.Resampling.BILINEAR))
    none = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, height, width, dtype=torch.bool)
    return Sample(_tensor(pixels), *none, entry.id, (entry.height, entry.width))


def _tensor(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


class Loader:
    """This rank's share of every training batch, endlessly from step `start` on.

    Every epoch has a new order. Images wider than tall and the others go into separate batches, as in Detectron2, which
    keeps padding small. A batch depends on the seed of the settings, its step and the world size.

    Args:
        images: the training set; images without a trainable object are skipped.
        settings: sizes, batch and seed.
        start: the first step.
        rank: of this process.
        world: the world size; divides the batch.
        workers: number of data loading processes.

    Raises:
        UserError: the batch cannot be divided, no image is trainable, or (later) an image cannot be read.
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
            raise UserError(
                f"a batch of {settings.batch} cannot be divided among {plural(world, 'process', 'processes')}: change "
                "batch"
            )
        self._images, self._settings, self._workers = images.trainable, settings, workers
        if not len(self._images):
            raise UserError(
                f"{images.listed_in} has no object to train on in the {plural(len(images), 'selected image')}"
            )
        self._plan = _Plan(self._images, settings, start, rank, world)

    def __iter__(self) -> Iterator[list[Sample]]:
        """Batches of samples."""
        return _load(partial(_sample_at, self._images, self._settings), self._plan, self._workers)


def evaluation_samples(
    images: CocoSet, settings: DetectionSettings, *, rank: int = 0, world: int = 1, workers: int = 0
) -> Iterator[Sample]:
    """This rank's share of the images in order, strided by rank.

    Raises:
        UserError: an image cannot be read.
    """
    share = [[index] for index in range(rank, len(images), world)]
    return chain.from_iterable(_load(partial(evaluation_sample, images, settings=settings), share, workers))


class _Plan(Sampler[list[tuple[int, int, int]]]):
    """(step, position in the global batch, image) for all images of one rank's batches."""

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
                # The order before `start` is recomputed instead of stored: one second per million images.
                if step >= self._start:
                    yield [(step, self._rank * self._share + place, index) for place, index in enumerate(group)]
                step += 1
                group.clear()

    def _order(self) -> Iterator[int]:
        for epoch in count():
            random = seeding.generator(seeding.Purpose.TRANSFER_ORDER, self._seed, epoch)
            yield from random.permutation(len(self._wide)).tolist()


def _sample_at(images: CocoSet, settings: DetectionSettings, key: tuple[int, int, int]) -> Sample:
    step, place, index = key
    random = seeding.generator(seeding.Purpose.TRANSFER_VIEW, settings.seed, step, place)
    return training_sample(images, index, settings, random)


class _Samples(Dataset["Sample | str"]):
    """The sample of each item; a UserError is returned as its message, because a worker would add a traceback."""

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
        generator=torch.Generator(),  # the default would draw from torch's global generator, which engines use
    )
    for batch in watch_workers(loader):
        for sample in batch:
            if isinstance(sample, str):
                raise UserError(sample)
        yield batch
