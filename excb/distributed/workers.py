"""Batches as a loader's worker processes give them: one line where a worker is lost, and none that outlives its use."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from torch.utils.data import DataLoader

from excb.errors import UserError

MOST_WORKERS = 8
PATIENCE = 5.0  # seconds that workers have to end by themselves
# Why the system ends a worker, by the signal that it was ended with.
_CAUSES = {
    signal.SIGKILL: "most often because memory ran out: lower efficiency.workers or efficiency.prefetch",
    signal.SIGBUS: "most often because shared memory is full: enlarge /dev/shm (containers: --shm-size), or lower "
    "efficiency.workers or efficiency.prefetch",
}


def worker_count(wanted: int) -> int:
    """Processes that read images: as many as wanted, or for -1 one per core that this process may use, at most 8.

    Processes that train together on one machine share its cores.
    """
    if wanted >= 0:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_WORKERS, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def follow_parent(_worker: int) -> None:
    """Start of a worker process: the parent answers the signals, and the worker ends when the parent does.

    Ctrl-C and SIGTERM reach the whole process group. A worker that died of them would take the parent down in the
    middle of a step. The loader's own watch over the parent starts later and takes whoever is the parent then for it: a
    worker whose parent was killed before would wait for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


class ReadingError(UserError):
    """Images do not come any more; what was trained so far is whole."""


def watch_workers(loader: DataLoader[Any]) -> Iterator[Any]:
    """The batches of a loader.

    torch tells of a lost worker by a signal, and raises wherever the program is just then, in the middle of a step or
    of a checkpoint. Here it is told when the next batch is asked for, at most 5 seconds later.

    Raises:
        ReadingError: a worker died or failed; in this process alone.
    """
    if loader.num_workers == 0:
        yield from loader
        return
    others = multiprocessing.active_children()
    iterator = iter(loader)
    workers = [child for child in multiprocessing.active_children() if child not in others]
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        while True:
            failure = None
            try:
                batch = next(iterator)
            except StopIteration:
                return
            except ReadingError:  # of what says which images to read
                raise
            except Exception as error:  # noqa: BLE001  # a worker's, of whatever kind
                failure = _told(error, workers)
            if failure is not None:  # not in the handler: its traceback would keep the iterator
                raise ReadingError(failure, rank_local=True)
            yield batch
    finally:
        # Those that read from a disk that hangs would not end, and the program would wait for them when it ends.
        end = threading.Timer(PATIENCE, _kill, [workers])
        end.daemon = True
        end.start()
        del iterator
        end.cancel()
        _kill(workers)
        for worker in workers:
            worker.join(PATIENCE)


def _kill(workers: Sequence[BaseProcess]) -> None:
    for worker in workers:
        worker.kill()


def _told(error: Exception, workers: Sequence[BaseProcess]) -> str:
    """What happened, why, and what to do."""
    codes = [worker.exitcode for worker in workers if worker.exitcode]
    if not codes:
        what = str(error).strip().rpartition("\n")[2]  # the last line of a worker's traceback
        return f"a process that reads images failed ({what}); efficiency.workers=0 shows where"
    ended = next((code for code in codes if code < 0), codes[0])
    if ended > 0:
        return f"a process that reads images ended with exit code {ended}; efficiency.workers=0 may show why"
    how = signal.Signals(-ended)
    why = _CAUSES.get(how, "a fault of a decoder or of the machine: efficiency.workers=0 may show which file")
    return f"a process that reads images was killed by {how.name}, {why}"
