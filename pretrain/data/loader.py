"""Training batches: an order that depends on the seed only, views cut in worker processes, broken files replaced."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from excb import seeding
from excb.distributed.collectives import gather_numbers, gather_objects, rank, world_size
from excb.distributed.workers import follow_parent
from excb.errors import UserError
from excb.images import jpeg
from excb.images.decoding import BrokenImageError, Source, open_image, open_smaller
from excb.images.image_set import CodedImages

from ..recipe import ViewSettings
from .views import ViewMaker

BROKEN_SHARE = 0.01  # a run is refused once more of its images than this are broken ...
BROKEN_SEEN = 200  # ... of at least so many seen
REPLACEMENTS = 20  # images tried in place of a broken one
NO_IMAGE = -1  # stands for the image used where all of these are broken too


class SampleRef(NamedTuple):
    """One image's place in the run."""

    epoch: int
    position: int  # in the epoch
    sample: int  # index in the image set
    content: bytes | None = None  # the image as it is stored, where no set gives it by its index
    name: str = ""  # of such an image


class Broken(NamedTuple):
    """A file that could not be read, and the image that took its place."""

    path: str
    reason: str
    replacement: str


@dataclass(frozen=True)
class Batch:
    """The views of B images, still to be augmented."""

    global_crops: Tensor  # [G, B, S, S, 3] uint8
    global_parameters: Tensor  # [G, B, P]
    local_crops: Tensor | None  # [L, B, s, s, 3] uint8
    local_parameters: Tensor | None  # [L, B, P]
    samples: Tensor  # [B] int64: the images scheduled, which name random choices
    used: Tensor  # [B] int64: the images that the views show; NO_IMAGE where none was readable
    broken: list[Broken]
    position: int = 0  # of the first image, in the epoch

    def pin_memory(self) -> "Batch":
        """Move the crops to page-locked memory (called by the loader)."""
        local = self.local_crops.pin_memory() if self.local_crops is not None else None
        return Batch(
            self.global_crops.pin_memory(),
            self.global_parameters,
            local,
            self.local_parameters,
            self.samples,
            self.used,
            self.broken,
            self.position,
        )

    def split(self, parts: int) -> list["Batch"]:
        """Equal micro-batches, in order; the first holds the list of broken files."""
        if parts == 1:
            return [self]
        rows = len(self.samples) // parts

        def cut(tensor: Tensor | None, part: int, dimension: int) -> Tensor | None:
            return None if tensor is None else tensor.narrow(dimension, part * rows, rows)

        return [
            Batch(
                cut(self.global_crops, part, 1),  # type: ignore[arg-type]
                cut(self.global_parameters, part, 1),  # type: ignore[arg-type]
                cut(self.local_crops, part, 1),
                cut(self.local_parameters, part, 1),
                cut(self.samples, part, 0),  # type: ignore[arg-type]
                cut(self.used, part, 0),  # type: ignore[arg-type]
                [] if part else self.broken,
                self.position + part * rows,
            )
            for part in range(parts)
        ]


def epoch_order(images: int, *, seed: int, epoch: int) -> np.ndarray:
    """The order of the images in one epoch, [images]."""
    return seeding.generator(seeding.Purpose.ORDER, seed, epoch).permutation(images)


class Schedule(Sampler[list[SampleRef]]):
    """The batches from one step of the run to another; an epoch's incomplete last batch is left out.

    Args:
        images: size of the set.
        batch: images per step, all processes together.
        seed: the run's seed.
        start: first step.
        stop: the step to stop before.
        share: this process's number and how many there are: each takes its equal part of every batch.
    """

    def __init__(
        self, images: int, batch: int, *, seed: int, start: int, stop: int, share: tuple[int, int] = (0, 1)
    ) -> None:
        self._images, self._batch, self._seed, self._start, self._stop = images, batch, seed, start, stop
        number, world_size = share
        self._first, self._size = number * batch // world_size, batch // world_size

    def __len__(self) -> int:
        """Number of steps."""
        return self._stop - self._start

    def __iter__(self) -> Iterator[list[SampleRef]]:
        """Go through the batches."""
        per_epoch = self._images // self._batch
        epoch, order = -1, np.empty(0, np.int64)
        for step in range(self._start, self._stop):
            if step // per_epoch != epoch:
                epoch = step // per_epoch
                order = epoch_order(self._images, seed=self._seed, epoch=epoch)
            first = step % per_epoch * self._batch + self._first
            yield [SampleRef(epoch, place, int(order[place])) for place in range(first, first + self._size)]


class TrainingViews(Dataset["tuple[SampleRef, int, list[np.ndarray], list[Broken]]"]):
    """The views of the image in a slot.

    Args:
        images: the set.
        settings: the recipe's views.
        seed: the run's seed.
        epochs: length of the run in epochs.
        scaled_decoding: decode JPEGs smaller where every crop of the image allows it.
        decoder: who decodes JPEGs in full; the pixels are the same.
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

    def __getitem__(self, slot: SampleRef) -> tuple[SampleRef, int, list[np.ndarray], list[Broken]]:
        """Read the slot's image, or the one that takes its place, and cut its views."""
        used, broken = slot.sample, []
        for attempt in range(REPLACEMENTS):
            try:
                pixels, size = self._open(self._source(used, slot), slot)
                break
            except BrokenImageError as error:
                random = seeding.generator(seeding.Purpose.REPLACEMENT, self._seed, slot.epoch, slot.position, attempt)
                replacement = int(random.integers(len(self._images)))
                name = slot.name if used == slot.sample and slot.name else self._images.paths[used]
                broken.append(Broken(name, str(error), self._images.paths[replacement]))
                used = replacement
        else:
            # Raising here would reach the user as a worker's traceback; `BrokenFiles` refuses the run instead.
            used, pixels, size = NO_IMAGE, np.zeros((1, 1, 3), np.uint8), (1, 1)
        views = range(self._settings.global_views + self._settings.local_views)
        # Named by the scheduled image: its replacement's own views, later in the epoch, are others.
        arrays = self._maker.cut(pixels, epoch=slot.epoch, sample=slot.sample, views=views, size=size)
        return slot, used, arrays, broken

    def _source(self, index: int, slot: SampleRef) -> Source:
        """An image as it is stored."""
        if index == slot.sample and slot.content is not None:
            return io.BytesIO(slot.content)
        return self._images.source(index)

    def _open(self, source: Source, slot: SampleRef) -> tuple[np.ndarray, tuple[int, int]]:
        """An image's pixels, perhaps decoded smaller, and its whole size."""
        if not self._scaled:
            array = jpeg.pixels(source) if self._decoder == "torchvision" else None
            if array is None:
                array = np.asarray(open_image(source))
            return array, (array.shape[1], array.shape[0])
        image, size = open_smaller(source, partial(self._maker.shrink, epoch=slot.epoch, sample=slot.sample))
        return np.asarray(image), size


def collate(items: Sequence[tuple[SampleRef, int, list[np.ndarray], list[Broken]]]) -> Batch:
    """Stack the views of a batch's images view by view."""
    stacks = [torch.from_numpy(np.stack(arrays, axis=1)) for arrays in zip(*(item[2] for item in items), strict=True)]
    local_crops, local_parameters = stacks[2:] if len(stacks) == 4 else (None, None)
    return Batch(
        stacks[0],
        stacks[1],
        local_crops,
        local_parameters,
        torch.tensor([item[0].sample for item in items]),
        torch.tensor([item[1] for item in items]),
        [broken for item in items for broken in item[3]],
        items[0][0].position,
    )


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
    schedule: Sampler[list[SampleRef]] | None = None,
) -> DataLoader[Batch]:
    """This process's part of the batches from step `start` to `stop`; nothing but these two numbers is state.

    Args:
        images: the set.
        settings: the recipe's views.
        seed: the run's seed.
        epochs: length of the run in epochs.
        batch: images per step, all processes together.
        start: first step.
        stop: the step to stop before.
        workers: processes that read; 0 reads in this one.
        pin_memory: for copies to a GPU that do not wait.
        prefetch: batches that each worker reads ahead.
        scaled_decoding: decode large JPEGs smaller (`ViewMaker.shrink`): quicker, pixels differ a little.
        decoder: who decodes JPEGs in full.
        schedule: the batches, where they are not those of the set: slots with contents, for whose broken images those
            of the set stand in.
    """
    views = TrainingViews(images, settings, seed=seed, epochs=epochs, scaled_decoding=scaled_decoding, decoder=decoder)
    order = Schedule(len(images), batch, seed=seed, start=start, stop=stop, share=(rank(), world_size()))
    return DataLoader(
        views,  # type: ignore[arg-type]
        batch_sampler=schedule or order,
        collate_fn=collate,
        num_workers=workers,
        pin_memory=pin_memory,
        worker_init_fn=follow_parent,
        prefetch_factor=prefetch if workers else None,
    )


class BrokenFiles:
    """Counts broken files, names each once, and refuses a set that is more than 1 % broken.

    Counts are those of all processes, names those of this one.

    Args:
        seen: images that earlier parts of the run have seen.
        found: how many of them were broken. They are not judged again: the set may have been mended.
    """

    def __init__(self, seen: int = 0, found: int = 0) -> None:
        self.seen, self.found = seen, found
        self._before = seen, found
        self._named: set[str] = set()

    def count(self, batch: Batch) -> list[Broken]:
        """Count a batch of all processes; return this one's files not named before.

        Raises:
            UserError: too many are broken; in all processes alike.
        """
        new: list[Broken] = []
        for broken in batch.broken:
            if broken.path not in self._named:
                self._named.add(broken.path)
                new.append(broken)
        # A replacement broken too counts when its turn comes.
        mine = [len(batch.samples), int((batch.used != batch.samples).sum()), int((batch.used == NO_IMAGE).any())]
        seen, found, hopeless = gather_numbers(mine).sum(0).tolist()
        self.seen += seen
        self.found += found
        seen, found = self.seen - self._before[0], self.found - self._before[1]
        if hopeless or (seen >= BROKEN_SEEN and found > BROKEN_SHARE * seen):
            names = ", ".join(sorted(set().union(*gather_objects(self._named)))[:3])
            raise UserError.on_all_ranks(
                f"{found} of {seen} images seen are broken (more than 1 %), such as {names}: mend them, and the same "
                "command goes on; without them it is another run (another --out, with init=RUN for its weights)",
            )
        return new
