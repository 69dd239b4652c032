"""Which image comes when: an order that depends on the seed only, cut into batches and shared by the ranks."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from torch.utils.data import Sampler

from excb import seeding


class SampleRef(NamedTuple):
    """One place in a run's order of images, and the image that is due there."""

    epoch: int
    position: int  # in the epoch
    sample: int  # index in the image set
    content: bytes | None = None  # of a stream: the encoded image, which no index leads to
    name: str = ""  # of such an image, for messages


def epoch_order(images: int, *, seed: int, epoch: int) -> np.ndarray:
    """The order of the images in one epoch, [images]."""
    return seeding.generator(seeding.Purpose.ORDER, seed, epoch).permutation(images)


class BatchSampler(Sampler[list[SampleRef]]):
    """This rank's part of the batches from one step of the run to another; incomplete last batches are dropped.

    Args:
        images: size of the set.
        batch: images per step over all ranks.
        rank: this process; every rank takes an equal part of every batch.
    """

    def __init__(
        self, images: int, batch: int, *, seed: int, start: int, stop: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self._images, self._batch, self._seed, self._start, self._stop = images, batch, seed, start, stop
        self._first, self._size = rank * batch // world_size, batch // world_size

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[list[SampleRef]]:
        per_epoch = self._images // self._batch
        epoch, order = -1, np.empty(0, np.int64)
        for step in range(self._start, self._stop):
            if step // per_epoch != epoch:
                epoch = step // per_epoch
                order = epoch_order(self._images, seed=self._seed, epoch=epoch)
            first = step % per_epoch * self._batch + self._first
            yield [SampleRef(epoch, place, int(order[place])) for place in range(first, first + self._size)]
