"""This rank's batches of a run, from files by index or from a stream by position."""

from collections.abc import Iterable

from excb.distributed.collectives import all_succeed, rank, world_size
from excb.distributed.workers import watch_workers, worker_count
from excb.images.image_set import CodedImages

from ..recipe import Recipe
from .batch import ViewBatch
from .loader import loader
from .stream_images import StreamImages
from .stream_order import State, StreamBatchSampler, gather_state


class BatchFeed:
    """Makes the batches between two steps, and knows what resuming a stream takes.

    Raises:
        UserError: a stream cannot be read; raised on all ranks.
    """

    def __init__(self, images: CodedImages | StreamImages, recipe: Recipe, *, pin_memory: bool) -> None:
        self._images, self._recipe, self._pin_memory = images, recipe, pin_memory
        self.workers = worker_count(recipe.efficiency.workers)
        # The images that an index leads to: all of a set, the first few of a stream.
        self.indexed = all_succeed(lambda: images.kept) if isinstance(images, StreamImages) else images
        self._sampler: StreamBatchSampler | None = None
        self._resumed: State | None = None

    def batches(self, start: int, stop: int) -> Iterable[ViewBatch]:
        """This rank's part of the batches from step `start` to `stop`; of a stream, `start` is where the run is.

        Raises:
            ReadingError: while iterating, a worker died or a shard cannot be read.
        """
        recipe, images = self._recipe, self._images
        if isinstance(images, StreamImages):
            self._sampler = all_succeed(
                lambda: StreamBatchSampler(
                    images,
                    recipe.optim.batch,
                    seed=recipe.run.seed,
                    start=start,
                    stop=stop,
                    rank=rank(),
                    world_size=world_size(),
                    state=self._resumed if start else None,
                )
            )
        batches = loader(
            self.indexed,
            recipe,
            start=start,
            stop=stop,
            workers=self.workers,
            pin_memory=self._pin_memory,
            sampler=self._sampler,
        )
        return watch_workers(batches)

    def step_done(self, step: int) -> None:
        """Note that `step` steps are done: states of earlier ones are no longer kept."""
        if self._sampler is not None:
            self._sampler.step_done(step)

    def stream_state(self, step: int) -> State | None:
        """A stream's state after `step` steps, for a checkpoint; None for images in files. All ranks call it."""
        return self._resumed if self._sampler is None else gather_state(self._sampler.state_after(step))

    def restore(self, state: State | None) -> None:
        """Resume from `stream_state`."""
        self._resumed = state
