"""Worker processes of data loaders: their number, their signals, and one clear error where a worker is lost."""

import atexit
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from typing import Any, NoReturn

from torch.utils.data import DataLoader

from excb.distributed.launcher import CORES, whole_number
from excb.distributed.machine import usable_cores
from excb.errors import UserError

MOST_WORKERS = 8
PATIENCE = 5.0  # seconds that workers have to exit on their own
ASK = 5  # seconds between two looks at workers that deliver nothing
STALLED = 1800.0  # seconds without a batch, after which the disk or network that they read from hangs
_FULL = (
    "shared memory is full: enlarge /dev/shm (containers: --shm-size), or lower efficiency.workers or "
    "efficiency.prefetch"
)
# Why the system kills a worker, by signal.
_CAUSES = {
    signal.SIGKILL: "most often because memory ran out: lower efficiency.workers or efficiency.prefetch",
    signal.SIGBUS: f"most often because {_FULL}",
}


NO_BATCH = 74  # exit code of a worker that cannot hand over what it read


def worker_count(wanted: int) -> int:
    """Number of worker processes: `wanted`, or for -1 one per core that this process may use, at most 8.

    Ranks on one machine share its cores, unless their launcher gave each its own.
    """
    if wanted >= 0:
        return wanted
    shared = usable_cores() // whole_number("LOCAL_WORLD_SIZE", 1, least=1)
    return max(1, min(MOST_WORKERS, whole_number(CORES, shared)))


def follow_parent(_worker: int) -> None:
    """Initialise a worker process: it leaves signals to its parent, and exits when the parent does.

    Ctrl-C and SIGTERM reach the whole process group. A worker that died of them would end the parent within a step.
    The loader's own check of the parent starts later. A worker whose parent was killed before it would wait forever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Python's queue would report the error and drop the batch, for which the loader would wait forever.
    Queue._on_queue_feeder_error = staticmethod(_end_without_batch)  # type: ignore[attr-defined]
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_exit_with, args=(parent.sentinel,), daemon=True).start()


def _end_without_batch(_error: Exception, _batch: object) -> NoReturn:
    os._exit(NO_BATCH)


def _exit_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


class ReadingError(UserError):
    """No more images can be read. What was trained so far is intact."""


def watch_workers(loader: DataLoader[Any]) -> Iterator[Any]:
    """The batches of a loader.

    torch reports a lost worker with a signal, whose handler raises wherever the program is, even within a step or a
    checkpoint. Here it is reported when the next batch is requested, at most 5 seconds later.

    Raises:
        ReadingError: a worker died or failed, or none delivered for half an hour, on this rank alone.
    """
    if loader.num_workers == 0:
        yield from loader
        return
    loader.timeout = ASK
    others = multiprocessing.active_children()
    iterator = iter(loader)
    workers = [child for child in multiprocessing.active_children() if child not in others]
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A program may end with these batches still open, and multiprocessing then waits for workers that ignore SIGTERM.
    kill, finalizing = partial(_kill, workers), sys.is_finalizing  # at its end, names of modules are gone
    atexit.register(kill)
    try:
        while True:
            failure = None
            try:
                batch = _next_batch(iterator, workers)
            except StopIteration:
                return
            except ReadingError:  # from the sampler
                raise
            except Exception as error:  # noqa: BLE001  # from a worker
                failure = _cause(error, workers)
            if failure is not None:  # outside the handler, whose traceback would keep the iterator alive
                raise ReadingError(failure, rank_local=True)
            yield batch
    finally:
        if not finalizing():  # else they are killed already, and no thread can be started
            # Workers that hang while reading would not exit, and the program would wait for them at its end.
            end = threading.Timer(PATIENCE, kill)
            end.daemon = True
            end.start()
            del iterator
            end.cancel()
            kill()
            for worker in workers:
                worker.join(PATIENCE)
            atexit.unregister(kill)


def _next_batch(iterator: Iterator[Any], workers: Sequence[BaseProcess]) -> Any:
    """The next batch, also of slow workers: torch gives up after `ASK` seconds, and can be asked again."""
    end = time.monotonic() + STALLED
    while True:
        try:
            return next(iterator)
        except RuntimeError as error:
            if not str(error).startswith("DataLoader timed out"):
                raise
        if time.monotonic() > end:
            numbers = ", ".join(str(worker.pid) for worker in workers)
            raise ReadingError(
                f"the processes that read images ({numbers}) have delivered no batch for {STALLED / 60:.0f} minutes: "
                "their disk or file server hangs, or somebody stopped them; check both, then start again",
                rank_local=True,
            )


def _kill(workers: Sequence[BaseProcess]) -> None:
    for worker in workers:
        worker.kill()


def _cause(error: Exception, workers: Sequence[BaseProcess]) -> str:
    codes = [worker.exitcode for worker in workers if worker.exitcode]
    if not codes:
        what = str(error).strip().rpartition("\n")[2]  # the last line of a worker's traceback
        return f"a process that reads images failed ({what}); efficiency.workers=0 shows where"
    ended = next((code for code in codes if code < 0), codes[0])
    if ended == NO_BATCH:
        return f"a process that reads images cannot hand over a batch, most often because {_FULL}"
    if ended > 0:
        return f"a process that reads images ended with exit code {ended}; efficiency.workers=0 may show why"
    how = signal.Signals(-ended)
    why = _CAUSES.get(how, "a fault of a decoder or of the machine: efficiency.workers=0 may show which file")
    return f"a process that reads images was killed by {how.name}, {why}"
