"""Heartbeats between the processes of a run, so that a hung one is reported and the others do not wait forever.

A thread in each process increments a counter in the store of the process group. Rank 0 watches the counters of all
ranks, the others watch that of rank 0. A process that sees a counter stand still reports it and exits. The training
thread is not involved.
"""

import os
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from excb.distributed.collectives import join_store, rank, run_on_rank0, world_size
from excb.errors import USER_ERROR, UserError

VARIABLE = "EXCB_HANG_SECONDS"  # environment variable: seconds without a heartbeat; 0 switches heartbeats off
SECONDS = 300.0
LONGEST = 1e9  # threads cannot wait much longer
CHECKS = 10  # in that time
LEFT = -(1 << 40)  # added to the counter of a process that has finished, which makes it negative
PARTING = 2.0  # seconds to write that to the store


def hang_seconds() -> float:
    """Seconds without a heartbeat that count as a hang. Raises UserError unless the variable is a number from 0 on."""
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or SECONDS)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST:
        raise UserError.on_all_ranks(f"{VARIABLE}={text} is not a number of seconds: unset it, or set it to 0 or more")
    return seconds


@contextmanager
def watched(program: str) -> Iterator[None]:
    """Send heartbeats while the block runs. Where another process stops, exit with a message of `program` and code 2.

    Raises:
        UserError: see `hang_seconds`.
    """
    seconds, stopped = hang_seconds(), threading.Event()
    if world_size() == 1 or not seconds:
        yield
        return
    name = run_on_rank0(lambda: uuid.uuid4().hex)  # torchrun restarts processes with the same store
    thread = threading.Thread(target=_beat, args=(program, name, seconds, stopped), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(PARTING)


def _beat(program: str, name: str, seconds: float, stopped: threading.Event) -> None:
    try:
        store, keys = join_store(), [f"excb/{name}/{number}" for number in range(world_size())]
        if hung := _first_silence(store, keys, seconds, stopped):
            _end(program, hung, seconds)
        store.add(keys[rank()], LEFT)
    except RuntimeError:
        return  # the store is gone with the process that kept it, which ends the run


def _first_silence(store: Any, keys: list[str], seconds: float, stopped: threading.Event) -> list[int]:
    """Beat and check until other ranks have been silent for too long. Returns them, or none once `stopped` is set."""
    counts: dict[int, int] = {}
    # Count checks, not seconds: a machine that was suspended as a whole has checked no more often than it has beaten.
    silent = dict.fromkeys(range(1, world_size()) if rank() == 0 else range(1), 0)
    while not stopped.wait(seconds / CHECKS):
        store.add(keys[rank()], 1)
        for number in silent:
            count = store.add(keys[number], 0)
            silent[number] = 0 if count < 0 or count != counts.get(number) else silent[number] + 1
            counts[number] = count
        if hung := [number for number, checks in silent.items() if checks >= CHECKS]:
            return hung
    return []


def _end(program: str, hung: list[int], seconds: float) -> NoReturn:
    """Report the hung ranks and exit at once, since the main thread is waiting for them."""
    if rank() <= 1:  # rank 1 reports where rank 0 hangs
        who = f"process{'es' * (len(hung) > 1)} {' and '.join(map(str, hung))} of {world_size()}"
        sys.stderr.write(
            f"{program}: error: {who} sent no heartbeat for {seconds:g} seconds (it was stopped, or its machine "
            "hangs or is gone), and the others were stopped: run the same command to resume from the newest checkpoint "
            f"({VARIABLE} changes the time)\n"
        )
        sys.stderr.flush()
    os._exit(USER_ERROR)
