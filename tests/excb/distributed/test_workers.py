"""Batches from worker processes: the loader's own, and one line where a worker is lost."""

import multiprocessing
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from excb.distributed import workers
from excb.distributed.workers import MOST_WORKERS, ReadingError, follow_parent, watch_workers, worker_count
from tests import forked


class Numbers(Dataset[int]):
    """0 to 19; at 12 something happens in the worker that reads it."""

    def __init__(self, deed: str = "") -> None:
        self._deed = deed

    def __len__(self) -> int:
        return 20

    def __getitem__(self, item: int) -> int:
        if item == 12 and self._deed == "fails":
            raise KeyError("a fault")
        if item == 12 and self._deed == "exits":
            os._exit(3)
        if item == 12 and self._deed == "pauses":
            signal.pause()
        elif item == 12 and self._deed:
            os.kill(os.getpid(), signal.Signals[self._deed])
        return item


def loader(deed: str = "", number: int = 2) -> DataLoader[int]:
    return DataLoader(Numbers(deed), batch_size=4, num_workers=number, worker_init_fn=follow_parent)


@pytest.mark.parametrize("number", [0, 2])
def test_batches_are_the_loaders_and_no_worker_is_left(number: int) -> None:
    assert torch.cat(list(watch_workers(loader(number=number)))).tolist() == list(range(20))
    assert multiprocessing.active_children() == []


def test_whoever_stops_early_leaves_no_worker() -> None:
    batches = watch_workers(loader())
    assert next(batches).tolist() == [0, 1, 2, 3]
    batches.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


NOTHING = r"images \(\d+, \d+\) have delivered no batch for 0 minutes: their disk or"


def test_workers_that_deliver_nothing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where their disk hangs; slow ones are waited for."""
    monkeypatch.setattr(workers, "ASK", 0.01)
    batches = watch_workers(loader("pauses"))
    assert torch.cat([next(batches), next(batches), next(batches)]).tolist() == list(range(12))
    monkeypatch.setattr(workers, "STALLED", 0.02)
    with pytest.raises(ReadingError, match=NOTHING):
        next(batches)
    assert multiprocessing.active_children() == []


def test_workers_that_are_stopped_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped worker sends nothing more, not even batches that it had read before."""
    monkeypatch.setattr(workers, "ASK", 0.01)
    monkeypatch.setattr(workers, "STALLED", 0.2)
    with pytest.raises(ReadingError, match=NOTHING):
        list(watch_workers(loader("SIGSTOP")))
    assert multiprocessing.active_children() == []


STILL_OPEN = """
from torch.utils.data import DataLoader
from excb.distributed.workers import follow_parent, watch_workers

batches = watch_workers(DataLoader(range(100), num_workers=2, worker_init_fn=follow_parent))
print(next(batches).item())
"""


def test_a_program_ends_while_batches_are_open() -> None:
    # A new interpreter: a forked program ends in another way.
    command = [sys.executable, "-c", STILL_OPEN]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, ["0"], "")


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("SIGKILL", "killed by SIGKILL, most often because memory ran out"),
        pytest.param("SIGBUS", "killed by SIGBUS, most often because shared memory is full", marks=pytest.mark.slow),
        pytest.param("SIGSEGV", "killed by SIGSEGV, a fault of a decoder or of the machine", marks=pytest.mark.slow),
        pytest.param("exits", "ended with exit code 3", marks=pytest.mark.slow),
        ("fails", "failed (KeyError: 'a fault'); efficiency.workers=0 shows where"),
    ],
)
def test_a_lost_worker_is_told_in_its_place(deed: str, words: str) -> None:
    """Batches before the lost one arrive, as far as they were read; the next one is refused."""
    seen: list[int] = []
    with pytest.raises(ReadingError) as error:
        seen.extend(number for batch in watch_workers(loader(deed)) for number in batch.tolist())
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert seen == list(range(len(seen)))
    assert len(seen) in (4, 8, 12)
    assert multiprocessing.active_children() == []


class _NoRoom:
    """A batch that no shared memory holds."""

    def __reduce__(self) -> str:
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")


def _full(_samples: list[int]) -> _NoRoom:
    return _NoRoom()


def test_a_batch_that_cannot_be_handed_over_ends_the_wait() -> None:
    full = DataLoader(Numbers(), batch_size=4, num_workers=1, worker_init_fn=follow_parent, collate_fn=_full)
    with pytest.raises(ReadingError, match="cannot hand over a batch, most often because shared memory is full"):
        next(watch_workers(full))
    assert multiprocessing.active_children() == []


def test_without_workers_a_failure_is_itself() -> None:
    with pytest.raises(KeyError):
        list(watch_workers(loader("fails", number=0)))


# ---------------------------------------------------------------------------------------------------------------------
# Number of workers, and signals
# ---------------------------------------------------------------------------------------------------------------------


def test_worker_counts() -> None:
    assert worker_count(0) == 0
    assert worker_count(3) == 3
    assert 1 <= worker_count(-1) <= min(MOST_WORKERS, os.cpu_count() or 1)


def test_ranks_share_the_cores_unless_each_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("excb.distributed.workers.usable_cores", lambda: 6)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert worker_count(-1) == 2
    monkeypatch.setenv("EXCB_CORES", "6")  # of a Slurm task that is bound to them
    assert worker_count(-1) == 6


def test_workers_ignore_signals_meant_for_the_group() -> None:
    program = (
        "import os, signal; from excb.distributed.workers import follow_parent; follow_parent(0);"
        "os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGTERM); print('alive')"
    )
    done = forked.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout == "alive\n"


ORPHANS = """
import os, signal
from torch.utils.data import DataLoader
from excb.distributed.workers import follow_parent

def start(worker):
    follow_parent(worker)
    if worker == 1:
        parent = os.getppid()
        os.kill(parent, signal.SIGKILL)
        while os.getppid() == parent:
            pass

next(iter(DataLoader(range(8), num_workers=2, worker_init_fn=start)))
"""


def test_workers_whose_parent_is_killed_while_they_start_end_too() -> None:
    # They hold the pipe that the output is read from: it ends when the last of them has.
    done = forked.run([sys.executable, "-c", ORPHANS], capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
