"""The order of a stream's images: shard readers with a shuffle buffer each, and a state for exact resuming.

A batch is an equal number of images from each of R shard readers. R follows from the batch and the number of shards
alone, and every rank takes whole readers, so the order does not depend on the number of ranks or workers. A reader goes
through its own shards, in a new order each time, and keeps a buffer: an image drawn at random leaves the buffer, and
the next one of the stream takes its place. The state says which images the buffers hold. To resume, these are read
again.
"""

import queue
import threading
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from excb import seeding
from excb.console import plural
from excb.distributed.collectives import gather_rows
from excb.distributed.workers import PATIENCE, ReadingError
from excb.errors import UserError

from .sampler import SampleRef
from .stream_images import StreamImages, image_name, sample_of

MAX_READERS = 64  # each keeps a shard open
PREFETCHED = 4  # batches that a thread reads ahead of the workers
KEPT_BEHIND = 2  # steps whose states are kept, because the newest steps may be taken back
State = dict[str, Tensor]


def reader_count(images: StreamImages, batch: int, world_size: int) -> int:
    """R, the largest divisor of the batch up to the number of shards and `MAX_READERS`.

    Raises:
        UserError: the ranks cannot take equal parts of the readers.
    """
    readers = max(count for count in range(1, min(images.shards, MAX_READERS) + 1) if batch % count == 0)
    if readers % world_size:
        fit = ", ".join(str(count) for count in range(1, readers + 1) if readers % count == 0)
        raise UserError(
            f"{images.root} has {plural(images.shards, 'shard')}, which for a batch of {batch} means "
            f"{plural(readers, 'shard reader')}: {world_size} processes cannot share them evenly, {fit} can"
        )
    return readers


def describe_order(images: StreamImages, batch: int, readers: int) -> str:
    """Describe a stream's order to the user, in one message."""
    buffer, steps = max(1, images.buffer // readers), len(images) // batch
    return (
        f"{images.root} is a stream of {plural(images.shards, 'shard')}, {plural(readers, 'shard reader')} and a "
        f"shuffle buffer of {plural(buffer, 'image')} in each. The shuffle is local: an image comes at most "
        f"{plural(buffer, 'place')} too early in its reader and about as many too late, so neighbours in a shard stay "
        f"close to each other. An epoch is {plural(steps, 'step')}, in which some images may come twice or not at "
        "all. Resuming is exact and reads the images in the buffers again"
    )


def gather_state(mine: State) -> State:
    """The state of all ranks' shard readers, in order."""
    return {name: gather_rows(part) for name, part in mine.items()}


class ShardReader:
    """Reads its shards in a random order, pass after pass, through a shuffle buffer.

    Args:
        reader: number of this reader; it reads every R-th shard from there.
        readers: R, how many there are.
        state: of all readers, to resume from.

    Raises:
        UserError: its shards cannot be read, hold no image, or differ from those of the state.
    """

    def __init__(
        self, images: StreamImages, reader: int, readers: int, *, seed: int, state: State | None = None
    ) -> None:
        self._images, self._reader, self._seed = images, reader, seed
        self._shards = np.arange(reader, images.shards, readers)
        self._rows: Generator[bytes] | None = None
        size = max(1, images.buffer // readers)
        self._pass = self._place = self._row = self._draws = self._seen = 0
        if state is None:
            first = [self._next() for _ in range(size)]
            self._buffer = np.array([[shard, row] for shard, row, _ in first], np.int64)
            self._contents = [content for _, _, content in first]
        else:
            self._pass, self._place, self._row, self._draws, self._seen = state["counts"][reader].tolist()
            self._buffer = state["waiting"][reader].numpy().copy()
            self._contents = self._read_buffer()

    def state(self) -> tuple[list[int], np.ndarray]:
        """Pass, place in it, row, draws, rows seen in the pass; and shard and row of the buffered images, [B, 2]."""
        return [self._pass, self._place, self._row, self._draws, self._seen], self._buffer.copy()

    def draw(self) -> tuple[int, int, bytes]:
        """Draw the next image of the order: its shard, its row, and its bytes."""
        random = seeding.generator(seeding.Purpose.STREAM, self._seed, self._reader, self._draws)
        place = int(random.integers(len(self._buffer)))
        shard, row = self._buffer[place].tolist()
        content = self._contents[place]
        *self._buffer[place], self._contents[place] = self._next()
        self._draws += 1
        return shard, row, content

    def close(self) -> None:
        """Close the shard that is being read."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def _next(self) -> tuple[int, int, bytes]:
        """The next image of the shards: shard, row and bytes."""
        while True:
            shard = int(self._shard_order()[self._place])
            if self._rows is None:
                self._rows = self._images.rows(shard, self._row)
            content = next(self._rows, None)
            if content is not None:
                self._row, self._seen = self._row + 1, self._seen + 1
                return shard, self._row - 1, content
            self._rows, self._row, self._place = None, 0, self._place + 1
            if self._place == len(self._shards):
                if not self._seen:
                    raise UserError(
                        f"shards {self._shards.tolist()} of {self._images.root} hold no image: leave them out"
                    )
                self._place, self._pass, self._seen = 0, self._pass + 1, 0

    def _shard_order(self) -> np.ndarray:
        random = seeding.generator(seeding.Purpose.STREAM, self._seed, self._reader, self._pass, 1)
        return self._shards[random.permutation(len(self._shards))]

    def _read_buffer(self) -> list[bytes]:
        """Read the buffered images again, each shard up to the last of them."""
        contents: dict[tuple[int, int], bytes] = {}
        for shard in np.unique(self._buffer[:, 0]).tolist():
            rows = set(self._buffer[self._buffer[:, 0] == shard, 1].tolist())
            first = min(rows)
            for row, content in enumerate(self._images.rows(shard, first), first):
                if row in rows:
                    contents[shard, row] = content
                if row == max(rows):
                    break
        places = [(shard, row) for shard, row in self._buffer.tolist()]
        if missing := [place for place in places if place not in contents]:
            raise UserError(
                f"{self._images.root} has changed ({image_name(*missing[0])} is gone): choose another --out, with "
                "init= to start from this run's weights"
            )
        return [contents[place] for place in places]


class StreamBatchSampler(Sampler[list[SampleRef]]):
    """This rank's part of the batches from one step of the run to another, prefetched by a thread.

    Args:
        batch: images per step over all ranks.
        state: of all shard readers before the first step; None at step 0.
    """

    def __init__(
        self,
        images: StreamImages,
        batch: int,
        *,
        seed: int,
        start: int,
        stop: int,
        rank: int = 0,
        world_size: int = 1,
        state: State | None = None,
    ) -> None:
        self._images, self._batch, self._seed, self._start, self._stop = images, batch, seed, start, stop
        readers = reader_count(images, batch, world_size)
        self._mine = range(rank * readers // world_size, (rank + 1) * readers // world_size)
        self._each = batch // readers
        self._readers = [ShardReader(images, reader, readers, seed=seed, state=state) for reader in self._mine]
        self._states = {start: self._state()}

    def __len__(self) -> int:
        return self._stop - self._start

    def step_done(self, step: int) -> None:
        """Drop the states of steps that can no longer be taken back, once `step` steps are done."""
        for old in [kept for kept in list(self._states) if kept < step - KEPT_BEHIND]:
            del self._states[old]

    def state_after(self, step: int) -> State:
        """The state of this rank's readers after `step` steps: the newest of `step_done`, or a later one."""
        return self._states[step]

    def _state(self) -> State:
        counts, buffers = zip(*(reader.state() for reader in self._readers), strict=True)
        return {"counts": torch.tensor(counts), "waiting": torch.from_numpy(np.stack(buffers))}

    def __iter__(self) -> Iterator[list[SampleRef]]:
        """Go through the batches; once.

        Raises:
            ReadingError: a shard cannot be read; raised on this rank only.
        """
        ready: queue.Queue[Any] = queue.Queue(PREFETCHED)
        stopped = threading.Event()
        thread = threading.Thread(target=self._read, args=(ready, stopped), name="stream", daemon=True)
        thread.start()
        try:
            for _ in range(self._start, self._stop):
                item = ready.get()
                if isinstance(item, UserError):
                    raise ReadingError(str(item), rank_local=True)
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            stopped.set()
            thread.join(PATIENCE)
            if not thread.is_alive():
                for reader in self._readers:
                    reader.close()

    def _read(self, ready: "queue.Queue[Any]", stopped: threading.Event) -> None:
        """Put the batches, or the error that ended them, into a queue until the consumer has stopped."""
        step = self._start
        while step < self._stop and not stopped.is_set():
            try:
                item: Any = self._batch_of(step)
                self._states[step + 1] = self._state()
            except Exception as error:  # noqa: BLE001 - raised again where the batch is consumed
                item, step = error, self._stop
            step += 1
            while not stopped.is_set():
                try:
                    ready.put(item, timeout=0.2)
                except queue.Full:
                    continue
                break

    def _batch_of(self, step: int) -> list[SampleRef]:
        epoch, number = divmod(step, len(self._images) // self._batch)
        first = number * self._batch + self._mine.start * self._each
        refs: list[SampleRef] = []
        for reader in self._readers:
            for _ in range(self._each):
                shard, row, content = reader.draw()
                place = first + len(refs)
                refs.append(SampleRef(epoch, place, sample_of(shard, row), content, image_name(shard, row)))
        return refs
