"""Signs of life between the processes of a run, so that one that hangs is named, and the others do not wait for ever.

Each process has a thread that counts in the store at which they met. Process 0 looks at the counts of all, the others
at that of process 0; who sees one stand still says so and ends its own process. What trains is not involved.
"""

import os
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch.distributed as dist

from excb.distributed.collectives import rank, run_on_rank0, world_size
from excb.errors import USER_ERROR, UserError

VARIABLE = "EXCB_HANG_SECONDS"  # environment variable: seconds without a sign of life; 0: no process is watched
SECONDS = 300.0
LOOKS = 10  # in that time
LEFT = -(1 << 40)  # makes the count of a process that has nothing more to do negative
PARTING = 2.0  # seconds that the store has for it


def hang_seconds() -> float:
    """Seconds without a sign of life after which a process counts as hung.

    Raises:
        UserError: the environment variable is no number, or a negative one.
    """
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or SECONDS)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise UserError.on_all_ranks(
            f"{VARIABLE}={text} is no number of seconds: leave it out, or write 0 or more",
        )
    return seconds


@contextmanager
def watched(program: str) -> Iterator[None]:
    """While the block runs, this process gives signs of life, and ends with a line and exit code 2 where others do not.

    Args:
        program: whose line it is.

    Raises:
        UserError: see `hang_seconds`.
    """
    seconds, stopped = hang_seconds(), threading.Event()
    if world_size() == 1 or not seconds:
        yield
        return
    name = run_on_rank0(lambda: uuid.uuid4().hex)  # torchrun starts processes again in the same store
    thread = threading.Thread(target=_beat, args=(program, name, seconds, stopped), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(PARTING)


def _beat(program: str, name: str, seconds: float, stopped: threading.Event) -> None:
    try:
        store: Any = dist.TCPStore(  # type: ignore[attr-defined]
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False
        )
        keys = [f"excb/{name}/{number}" for number in range(world_size())]
        if hung := _first_silence(store, keys, seconds, stopped):
            _end(program, hung, seconds)
        store.add(keys[rank()], LEFT)
    except RuntimeError:
        return  # the store is gone, and with it whoever keeps it: the run ends by that


def _first_silence(store: Any, keys: list[str], seconds: float, stopped: threading.Event) -> list[int]:
    """Count and look, until processes have not counted for so long: their numbers, or none where we are stopped."""
    counts: dict[int, int] = {}
    # Looks, not seconds: a machine that was suspended as a whole has looked no more often than it has counted.
    silent = dict.fromkeys(range(1, world_size()) if rank() == 0 else range(1), 0)
    while not stopped.wait(seconds / LOOKS):
        store.add(keys[rank()], 1)
        for number in silent:
            count = store.add(keys[number], 0)
            silent[number] = 0 if count < 0 or count != counts.get(number) else silent[number] + 1
            counts[number] = count
        if hung := [number for number, looks in silent.items() if looks >= LOOKS]:
            return hung
    return []


def _end(program: str, hung: list[int], seconds: float) -> NoReturn:
    """Say who hangs, and leave at once: the main thread waits for them."""
    if rank() <= 1:  # process 1 speaks where process 0 hangs
        who = f"process{'es' * (len(hung) > 1)} {' and '.join(map(str, hung))} of {world_size()}"
        sys.stderr.write(
            f"{program}: error: {who} gave no sign of life for {seconds:g} seconds (stopped, or the machine hangs or "
            "is gone), and the others were stopped; the same command goes on from the newest checkpoint "
            f"({VARIABLE} changes the time)\n"
        )
        sys.stderr.flush()
    os._exit(USER_ERROR)
