"""Training views, read and cut in worker processes; an unreadable image is replaced by another one."""

import io
from functools import partial

import numpy as np
from torch.utils.data import DataLoader, Dataset, Sampler

from excb import seeding
from excb.distributed.collectives import rank, world_size
from excb.distributed.workers import follow_parent
from excb.images import jpeg
from excb.images.decoding import BrokenImageError, Source, open_image, open_smaller
from excb.images.image_set import CodedImages
from excb.images.pixels import Notice, notice_of, pixels_of

from ..recipe import Recipe
from .batch import NO_IMAGE, Broken, Item, ViewBatch, collate
from .sampler import BatchSampler, SampleRef
from .views import ViewMaker

REPLACEMENTS = 20  # images tried instead of a broken one


class TrainingViews(Dataset[Item]):
    """The views of one image, by its place in a run of the recipe."""

    def __init__(self, images: CodedImages, recipe: Recipe) -> None:
        self._images, self._settings, self._seed = images, recipe.views, recipe.run.seed
        decoder = recipe.efficiency.decoder
        self._pixels = pixels_of(images)
        self._scaled, self._on_gpu = recipe.efficiency.scaled_decoding, decoder == "nvjpeg"
        self._decoder: jpeg.Decoder = "auto" if decoder == "nvjpeg" else decoder
        optim = recipe.optim
        self._maker = ViewMaker(recipe.views, seed=recipe.run.seed, epochs=optim.epochs, restarts=optim.restarts)

    def __getitem__(self, ref: SampleRef) -> Item:
        views = range(self._settings.global_views + self._settings.local_views)
        if self._on_gpu and (file := self._whole_file(ref)) is not None:
            boxes, arrays = self._maker.plan(file[1], epoch=ref.epoch, sample=ref.sample, views=views)
            return Item(ref, ref.sample, arrays, [], file[0], boxes)
        used, broken = ref.sample, list[Broken]()
        for attempt in range(REPLACEMENTS):
            try:
                pixels, size = self._open(self._source(ref, used), ref, notice_of(self._images, used))
                break
            except BrokenImageError as error:
                random = seeding.generator(seeding.Purpose.REPLACEMENT, self._seed, ref.epoch, ref.position, attempt)
                replacement = int(random.integers(len(self._images)))
                name = ref.name if used == ref.sample and ref.name else self._images.paths[used]
                broken.append(Broken(name, str(error), self._images.paths[replacement]))
                used = replacement
        else:
            # An error raised here would reach the user as a worker's traceback. `BrokenFiles` refuses the run instead.
            used, pixels, size = NO_IMAGE, np.zeros((1, 1, self._pixels.channels), np.uint8), (1, 1)
        # The scheduled image keys the random numbers, so the replacement's own views differ when its turn comes.
        arrays = self._maker.cut(pixels, epoch=ref.epoch, sample=ref.sample, views=views, size=size)
        return Item(ref, used, arrays, broken)

    def _whole_file(self, ref: SampleRef) -> tuple[bytes, tuple[int, int]] | None:
        try:
            return jpeg.whole_file(self._source(ref, ref.sample))
        except BrokenImageError:
            return None

    def _source(self, ref: SampleRef, image: int) -> Source:
        """Where an image is stored: the scheduled one of a stream comes with its content."""
        content = ref.content if image == ref.sample else None
        return self._images.source(image) if content is None else io.BytesIO(content)

    def _open(self, source: Source, ref: SampleRef, notice: Notice | None) -> tuple[np.ndarray, tuple[int, int]]:
        """An image's pixels, perhaps decoded at a reduced size, and its full size."""
        if not self._pixels.plain:
            image, size = open_smaller(source, lambda _size: 1, self._pixels, notice)
            return np.asarray(image), size
        if not self._scaled:
            array = jpeg.decode_jpeg(source, self._decoder)
            if array is None:
                array = np.asarray(open_image(source, self._pixels))
            return array, (array.shape[1], array.shape[0])
        shrink = partial(self._maker.shrink, epoch=ref.epoch, sample=ref.sample)
        if (decoded := jpeg.smaller_pixels(source, shrink, self._decoder)) is not None:
            return decoded
        image, size = open_smaller(source, shrink, self._pixels)
        return np.asarray(image), size


def loader(
    images: CodedImages,
    recipe: Recipe,
    *,
    start: int,
    stop: int,
    workers: int,
    pin_memory: bool,
    sampler: Sampler[list[SampleRef]] | None = None,
) -> DataLoader[ViewBatch]:
    """This rank's part of the batches from step `start` to `stop`; the step is all that a resumed run needs.

    Without workers this process reads. `pin_memory` is for asynchronous copies to a GPU. `sampler` gives the batches of
    a stream, whose refs hold encoded images; images of the set replace broken ones.
    """
    batch, seed = recipe.optim.batch, recipe.run.seed
    sampler = sampler or BatchSampler(
        len(images), batch, seed=seed, start=start, stop=stop, rank=rank(), world_size=world_size()
    )
    return DataLoader(
        TrainingViews(images, recipe),  # type: ignore[arg-type]
        batch_sampler=sampler,
        collate_fn=collate,
        num_workers=workers,
        pin_memory=pin_memory,
        worker_init_fn=follow_parent,
        prefetch_factor=recipe.efficiency.prefetch if workers else None,
    )
