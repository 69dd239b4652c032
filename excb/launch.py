"""One process per GPU on this machine: start them, pass signals on, and stop all of them when one fails."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import torch.distributed as dist

from excb.errors import USER_ERROR, UserError
from excb.parallel import LOST
from excb.signals import LAUNCHER, StopRequest

GRACE = 5.0  # seconds from one process's failure until the others are killed
POLL = 0.1  # seconds between looks at the processes


def launch(module: str, arguments: Sequence[str], processes: int) -> int:
    """Run `python -m MODULE ARGUMENTS` in several processes that work together.

    They find each other through a store that this process keeps, on a port that the system chooses. Ctrl-C reaches only
    this process, which passes it on: a first signal lets all of them finish the step and save, a second one ends them.

    Args:
        module: a command line program, such as "excb.pretrain".
        arguments: its command line, without the program.
        processes: how many.

    Returns:
        The exit code that all of them ended with.

    Raises:
        UserError: one failed and the others were stopped, within GRACE seconds; says which.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shared = {
        "OMP_NUM_THREADS": str(max(1, cores // processes)),
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the processes are clients of our store
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        LAUNCHER: str(os.getpid()),
    }
    command = [sys.executable, "-m", module, *arguments]
    with StopRequest(at_once=False) as stop:
        running = [
            subprocess.Popen(
                command, env=shared | {"RANK": str(number), "LOCAL_RANK": str(number)}, start_new_session=True
            )
            for number in range(processes)
        ]
        try:
            codes = _watch(running, stop)
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                process.wait()
        return _judge(codes, stop)


def _watch(running: Sequence[subprocess.Popen[bytes]], stop: StopRequest) -> list[int | None]:
    """Wait until all have ended, or one has failed and the others had their time; the codes, None where killed by us.

    The first process that failed, and did not merely lose another one, comes to the codes as it ended.
    """
    passed_on, failed_at = 0, None
    while True:
        codes = [process.poll() for process in running]
        if None not in codes:
            return codes
        if stop.count > passed_on:
            passed_on = stop.count
            for process in running:
                if process.poll() is None:
                    process.send_signal(stop.received or signal.SIGTERM)
        if failed_at is None and any(code not in (None, 0) for code in codes) and stop.received is None:
            failed_at = time.monotonic()
        if stop.count > 2 or (failed_at is not None and time.monotonic() - failed_at > GRACE):
            return codes
        time.sleep(POLL)


def _judge(codes: Sequence[int | None], stop: StopRequest) -> int:
    """The exit code, or an error that says which process failed."""
    if stop.received is not None and USER_ERROR not in codes:
        return stop.exit_code
    if all(code == codes[0] for code in codes) and codes[0] is not None and codes[0] >= 0 and codes[0] != LOST:
        return codes[0]
    if USER_ERROR in codes:
        return USER_ERROR  # that process has said why
    failed = [(number, code) for number, code in enumerate(codes) if code not in (None, 0)]
    number, code = next((pair for pair in failed if pair[1] != LOST), failed[0])
    assert code is not None
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    raise UserError(
        f"process {number} of {len(codes)} {how}, and the others were stopped; the same command goes on from the "
        "newest checkpoint"
    )
