"""Training views, read and cut in worker processes; an unreadable image is replaced by another one."""

import io
from functools import partial
from typing import Literal

import numpy as np
from torch.utils.data import DataLoader, Dataset, Sampler

from excb import seeding
from excb.distributed.collectives import rank, world_size
from excb.distributed.workers import follow_parent
from excb.images import jpeg
from excb.images.decoding import BrokenImageError, Source, open_image, open_smaller
from excb.images.image_set import CodedImages

from ..recipe import ViewSettings
from .batch import NO_IMAGE, Batch, Broken, Item, collate
from .sampler import BatchSampler, SampleRef
from .views import ViewMaker

REPLACEMENTS = 20  # images tried instead of a broken one


class TrainingViews(Dataset[Item]):
    """The views of one image, by its place in the run.

    Args:
        images: the set.
        settings: the recipe's views.
        seed: the run's seed.
        epochs: length of the run in epochs.
        scaled_decoding: decode JPEGs at a reduced size where every crop of the image allows it.
        decoder: library that decodes JPEGs in full; the pixels are the same.
    """

    def __init__(
        self,
        images: CodedImages,
        settings: ViewSettings,
        *,
        seed: int,
        epochs: int,
        scaled_decoding: bool = False,
        decoder: Literal["torchvision", "pillow"] = "torchvision",
    ) -> None:
        self._images, self._settings, self._seed = images, settings, seed
        self._scaled, self._decoder = scaled_decoding, decoder
        self._maker = ViewMaker(settings, seed=seed, epochs=epochs)

    def __getitem__(self, ref: SampleRef) -> Item:
        """Read the image that is due, or its replacement, and cut its views."""
        used, broken = ref.sample, list[Broken]()
        for attempt in range(REPLACEMENTS):
            try:
                pixels, size = self._open(self._source(used, ref), ref)
                break
            except BrokenImageError as error:
                random = seeding.generator(seeding.Purpose.REPLACEMENT, self._seed, ref.epoch, ref.position, attempt)
                replacement = int(random.integers(len(self._images)))
                name = ref.name if used == ref.sample and ref.name else self._images.paths[used]
                broken.append(Broken(name, str(error), self._images.paths[replacement]))
                used = replacement
        else:
            # An error raised here would reach the user as a worker's traceback. `BrokenFiles` refuses the run instead.
            used, pixels, size = NO_IMAGE, np.zeros((1, 1, 3), np.uint8), (1, 1)
        views = range(self._settings.global_views + self._settings.local_views)
        # The scheduled image keys the random numbers, so the replacement's own views differ when its turn comes.
        arrays = self._maker.cut(pixels, epoch=ref.epoch, sample=ref.sample, views=views, size=size)
        return ref, used, arrays, broken

    def _source(self, index: int, ref: SampleRef) -> Source:
        """An encoded image."""
        if index == ref.sample and ref.content is not None:
            return io.BytesIO(ref.content)
        return self._images.source(index)

    def _open(self, source: Source, ref: SampleRef) -> tuple[np.ndarray, tuple[int, int]]:
        """An image's pixels, perhaps decoded at a reduced size, and its full size."""
        if not self._scaled:
            array = jpeg.pixels(source) if self._decoder == "torchvision" else None
            if array is None:
                array = np.asarray(open_image(source))
            return array, (array.shape[1], array.shape[0])
        image, size = open_smaller(source, partial(self._maker.shrink, epoch=ref.epoch, sample=ref.sample))
        return np.asarray(image), size


def loader(
    images: CodedImages,
    settings: ViewSettings,
    *,
    seed: int,
    epochs: int,
    batch: int,
    start: int,
    stop: int,
    workers: int,
    pin_memory: bool,
    prefetch: int = 2,
    scaled_decoding: bool = False,
    decoder: Literal["torchvision", "pillow"] = "torchvision",
    sampler: Sampler[list[SampleRef]] | None = None,
) -> DataLoader[Batch]:
    """This rank's part of the batches from step `start` to `stop`; the step is all that a resumed run needs.

    Args:
        images: the set.
        settings: the recipe's views.
        seed: the run's seed.
        epochs: length of the run in epochs.
        batch: images per step over all ranks.
        start: first step.
        stop: the step to stop before.
        workers: processes that read; 0 reads in this one.
        pin_memory: for asynchronous copies to a GPU.
        prefetch: batches that each worker prefetches.
        scaled_decoding: decode large JPEGs at a reduced size (`ViewMaker.shrink`): faster, pixels differ slightly.
        decoder: library that decodes JPEGs in full.
        sampler: the batches of a stream, whose refs hold encoded images; images of the set replace broken ones.
    """
    views = TrainingViews(images, settings, seed=seed, epochs=epochs, scaled_decoding=scaled_decoding, decoder=decoder)
    sampler = sampler or BatchSampler(
        len(images), batch, seed=seed, start=start, stop=stop, rank=rank(), world_size=world_size()
    )
    return DataLoader(
        views,  # type: ignore[arg-type]
        batch_sampler=sampler,
        collate_fn=collate,
        num_workers=workers,
        pin_memory=pin_memory,
        worker_init_fn=follow_parent,
        prefetch_factor=prefetch if workers else None,
    )
