"""The order of a stream's images: lanes of shards, a shuffle buffer in each, and a state from which they go on exactly.

A batch is an equal number of images from each of L lanes. L follows from the batch and the number of shards alone and
processes take whole lanes, so the order is the same whatever their number, and that of their workers. Each lane reads
its own shards one after another, in a new order in every turn, through a buffer: the image drawn at random makes room
for the next one of the stream. State is which images wait in the buffers; going on, these are read again.
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
from excb.distributed.collectives import gather_rows
from excb.distributed.workers import PATIENCE, ReadingError
from excb.errors import UserError

from .loader import SampleRef
from .stream_images import StreamImages, image_name

MOST = 64  # lanes: each of them keeps a shard open
AHEAD = 4  # batches that a thread reads ahead of the workers
KEPT_BEHIND = 2  # steps that may be taken back after a state was asked for
State = dict[str, Tensor]


def lanes_of(images: StreamImages, batch: int, processes: int) -> int:
    """L, the largest divisor of the batch that is no more than the shards, and `MOST`.

    Raises:
        UserError: the processes cannot take equal parts of so many lanes.
    """
    lanes = max(count for count in range(1, min(images.shards, MOST) + 1) if batch % count == 0)
    if lanes % processes:
        fit = ", ".join(str(count) for count in range(1, lanes + 1) if lanes % count == 0)
        raise UserError(
            f"{images.root} has {images.shards} shards, which for a batch of {batch} are {lanes} lanes: {processes} "
            f"processes cannot share them evenly, {fit} can"
        )
    return lanes


def told(images: StreamImages, batch: int, lanes: int) -> str:
    """What a stream is and what its order is not, for the user."""
    waiting, steps = max(1, images.buffer // lanes), len(images) // batch
    return (
        f"{images.root} is a stream: {images.shards:,} shards in {lanes} lanes, with a shuffle buffer of {waiting:,} "
        f"images in each. Its order is no whole permutation: an image comes at most {waiting:,} places of its lane too "
        f"early and about as many too late, so neighbours in a shard stay near one another. An epoch is {steps:,} "
        "steps, in which some images may come twice or not at all. Resuming is exact, and reads again what waits in "
        "the buffers"
    )


def all_lanes(mine: State) -> State:
    """The lanes of all processes, in order."""
    return {name: gather_rows(part) for name, part in mine.items()}


class Lane:
    """One lane: its shards in a random order, turn after turn, through a shuffle buffer.

    Args:
        images: the stream.
        lane: its number.
        lanes: how many there are.
        seed: the run's seed.
        state: of all lanes, to go on from.

    Raises:
        UserError: its shards cannot be read, hold no image, or are others than those of the state.
    """

    def __init__(self, images: StreamImages, lane: int, lanes: int, *, seed: int, state: State | None = None) -> None:
        self._images, self._lane, self._seed = images, lane, seed
        self._shards = np.arange(lane, images.shards, lanes)
        self._rows: Generator[bytes] | None = None
        size = max(1, images.buffer // lanes)
        self._turn = self._place = self._row = self._draws = self._seen = 0
        if state is None:
            first = [self._next() for _ in range(size)]
            self._waiting = np.array([[shard, row] for shard, row, _ in first], np.int64)
            self._contents = [content for _, _, content in first]
        else:
            self._turn, self._place, self._row, self._draws, self._seen = state["counts"][lane].tolist()
            self._waiting = state["waiting"][lane].numpy().copy()
            self._contents = self._again()

    def state(self) -> tuple[list[int], np.ndarray]:
        """Turn, place in it, row, draws, rows seen in the turn; and shard and row of the waiting images, [B, 2]."""
        return [self._turn, self._place, self._row, self._draws, self._seen], self._waiting.copy()

    def draw(self) -> tuple[int, int, bytes]:
        """The next image of the order: its shard, its row, and its bytes."""
        random = seeding.generator(seeding.Purpose.STREAM, self._seed, self._lane, self._draws)
        place = int(random.integers(len(self._waiting)))
        shard, row = self._waiting[place].tolist()
        content = self._contents[place]
        *self._waiting[place], self._contents[place] = self._next()
        self._draws += 1
        return shard, row, content

    def close(self) -> None:
        """Close the shard that is being read."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def _next(self) -> tuple[int, int, bytes]:
        """The next image of the lane's shards."""
        while True:
            shard = int(self._order()[self._place])
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
                self._place, self._turn, self._seen = 0, self._turn + 1, 0

    def _order(self) -> np.ndarray:
        random = seeding.generator(seeding.Purpose.STREAM, self._seed, self._lane, self._turn, 1)
        return self._shards[random.permutation(len(self._shards))]

    def _again(self) -> list[bytes]:
        """Read the waiting images again, each of their shards up to the last of them."""
        found: dict[tuple[int, int], bytes] = {}
        for shard in np.unique(self._waiting[:, 0]).tolist():
            rows = set(self._waiting[self._waiting[:, 0] == shard, 1].tolist())
            first = min(rows)
            for row, content in enumerate(self._images.rows(shard, first), first):
                if row in rows:
                    found[shard, row] = content
                if row == max(rows):
                    break
        names = [(shard, row) for shard, row in self._waiting.tolist()]
        if missing := [name for name in names if name not in found]:
            raise UserError(
                f"{self._images.root} has changed ({image_name(*missing[0])} is gone): choose another --out, with "
                "init= to start from this run's weights"
            )
        return [found[name] for name in names]


class StreamSchedule(Sampler[list[SampleRef]]):
    """This process's part of the batches from one step of the run to another, read ahead by a thread.

    Args:
        images: the stream.
        batch: images per step, all processes together.
        seed: the run's seed.
        start: first step.
        stop: the step to stop before.
        share: this process's number and how many there are.
        state: of all lanes before the first step; None at step 0.
    """

    def __init__(
        self,
        images: StreamImages,
        batch: int,
        *,
        seed: int,
        start: int,
        stop: int,
        share: tuple[int, int] = (0, 1),
        state: State | None = None,
    ) -> None:
        self._images, self._batch, self._seed, self._start, self._stop = images, batch, seed, start, stop
        number, processes = share
        lanes = lanes_of(images, batch, processes)
        self._mine = range(number * lanes // processes, (number + 1) * lanes // processes)
        self._each = batch // lanes
        self._lanes = [Lane(images, lane, lanes, seed=seed, state=state) for lane in self._mine]
        self._states = {start: self._state()}

    def __len__(self) -> int:
        """Number of steps."""
        return self._stop - self._start

    def passed(self, step: int) -> None:
        """Keep no states for the time before so many steps, of which a few may be taken back later."""
        for older in [known for known in list(self._states) if known < step - KEPT_BEHIND]:
            del self._states[older]

    def state_after(self, step: int) -> State:
        """The state of this process's lanes after so many steps, the newest that `passed` was told or later ones."""
        return self._states[step]

    def _state(self) -> State:
        counts, waiting = zip(*(lane.state() for lane in self._lanes), strict=True)
        return {"counts": torch.tensor(counts), "waiting": torch.from_numpy(np.stack(waiting))}

    def __iter__(self) -> Iterator[list[SampleRef]]:
        """Go through the batches; once.

        Raises:
            ReadingError: a shard cannot be read; in this process alone.
        """
        ready: queue.Queue[Any] = queue.Queue(AHEAD)
        left = threading.Event()
        thread = threading.Thread(target=self._read, args=(ready, left), name="stream", daemon=True)
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
            left.set()
            thread.join(PATIENCE)
            if not thread.is_alive():
                for lane in self._lanes:
                    lane.close()

    def _read(self, ready: "queue.Queue[Any]", left: threading.Event) -> None:
        """Put the batches into a queue, or what went wrong, until the reader has left."""
        step = self._start
        while step < self._stop and not left.is_set():
            try:
                item: Any = self._slots(step)
                self._states[step + 1] = self._state()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where the batch is waited for
                item, step = error, self._stop
            step += 1
            while not left.is_set():
                try:
                    ready.put(item, timeout=0.2)
                except queue.Full:
                    continue
                break

    def _slots(self, step: int) -> list[SampleRef]:
        epoch, number = divmod(step, len(self._images) // self._batch)
        first = number * self._batch + self._mine.start * self._each
        slots: list[SampleRef] = []
        for lane in self._lanes:
            for _ in range(self._each):
                shard, row, content = lane.draw()
                sample = ((shard + 1) << 32) | row  # above the numbers of kept images
                slots.append(SampleRef(epoch, first + len(slots), sample, content, image_name(shard, row)))
        return slots
