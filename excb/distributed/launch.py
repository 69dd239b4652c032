"""One process per GPU on this machine: start them, forward signals, and stop all of them when one fails."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.distributed as dist

from excb.console import plural
from excb.distributed.launcher import LAUNCHER, LOST, started_together
from excb.distributed.machine import usable_cores
from excb.distributed.signals import STOPPED, StopRequest
from excb.errors import USER_ERROR, UserError, first_line

GRACE = 5.0  # seconds between one process's failure and the end of the others
POLL = 0.1  # seconds between looks at the processes


def launch_on_gpus(
    module: str, arguments: Sequence[str], gpus: int | None, *, answers: Collection[int] = ()
) -> int | None:
    """Start `gpus` processes with `launch`, if `--gpus` asks for several and this is not one of them already.

    Returns:
        The exit code, or None where this process does the work.

    Raises:
        UserError: there are fewer GPUs, or another number of processes was started.
    """
    if gpus is None or gpus < 2:
        return None
    if started_together():
        if (here := os.environ.get("LOCAL_WORLD_SIZE", "1")) != str(gpus):
            raise UserError.on_all_ranks(
                f"--gpus {gpus}, but {plural(int(here), 'process was', 'processes were')} started here (RANK is set): "
                "leave --gpus out under torchrun, or unset RANK"
            )
        return None
    require_gpus(gpus)
    return launch(module, arguments, gpus, answers=answers)


def require_gpus(gpus: int | None) -> None:
    """Raise UserError if `--gpus` asks for several, and this machine has fewer."""
    if gpus is not None and gpus > max(1, torch.cuda.device_count()):
        raise UserError(f"--gpus {gpus}, but this machine has {torch.cuda.device_count()}: lower --gpus")


def launch(module: str, arguments: Sequence[str], processes: int, *, answers: Collection[int] = ()) -> int:
    """Run `python -m MODULE ARGUMENTS` in several processes that form one process group.

    They meet at a store that this process keeps, on a free port. Ctrl-C reaches only this process, which forwards it.
    The first signal lets all of them finish the step and save. The second ends them, even if they hang.

    Args:
        module: a command line program, such as "excb.pretrain".
        arguments: its command line, without the program.
        processes: world_size.
        answers: exit codes above 0 that are not failures if all processes exit with the same one.

    Returns:
        The exit code of all of them.

    Raises:
        UserError: one failed, and the others were stopped within GRACE seconds; or no port can be opened.
    """
    store = open_store("127.0.0.1", 0, advice="start again")
    shared = process_environment("127.0.0.1", store.port, processes, processes)
    command = [sys.executable, "-m", module, *arguments]
    with StopRequest(second="count") as stop:
        ranks = ({"RANK": str(number), "LOCAL_RANK": str(number)} for number in range(processes))
        running = [subprocess.Popen(command, env=shared | own, start_new_session=True) for own in ranks]
        try:
            codes, failed = _watch(running, stop)
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                process.wait()
        return _exit_code(codes, failed, stop, answers)


def open_store(address: str, port: int, *, advice: str) -> Any:
    """The store at which the processes of a run meet, kept by this process for as long as the object lives.

    Args:
        address: of this machine, by which the others reach it.
        port: 0 takes a free one.
        advice: for the message, if the port cannot be opened.

    Raises:
        UserError: another program has the port.
    """
    try:
        return dist.TCPStore(address, port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    except dist.DistError as error:
        place = f"port {port} of {address}" if port else f"a port of {address}"
        raise UserError(f"cannot open {place} ({first_line(error)}): {advice}") from None


def process_environment(
    address: str, port: int, world_size: int, local_world_size: int, threads: str | None = None
) -> dict[str, str]:
    """The environment variables, except ranks, of a process whose launcher keeps the store at this address."""
    return {
        "OMP_NUM_THREADS": threads or str(max(1, usable_cores() // local_world_size)),
        **os.environ,
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the processes are clients of our store
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        LAUNCHER: str(os.getpid()),
    }


def _watch(running: Sequence[subprocess.Popen[bytes]], stop: StopRequest) -> tuple[list[int | None], list[int]]:
    """Wait for all, but not long after a failure or second signal: exit codes (None: still running), failed ranks."""
    failed, forwarded, deadline = list[int](), 0, math.inf
    while True:
        codes = [process.poll() for process in running]
        if stop.count > forwarded:
            forwarded = stop.count
            for process in running:
                if process.poll() is None:
                    process.send_signal(stop.received or signal.SIGTERM)
            if forwarded > 1:  # a process that hangs in a collective ignores signals
                deadline = min(deadline, time.monotonic() + 1)
        bad = [number for number, code in enumerate(codes) if code not in (None, 0, *STOPPED)]
        failed += [number for number in bad if number not in failed]
        if failed:
            deadline = min(deadline, time.monotonic() + GRACE)
        if None not in codes or time.monotonic() > deadline:
            return codes, failed
        time.sleep(POLL)


def _exit_code(codes: list[int | None], failed: list[int], stop: StopRequest, answers: Collection[int]) -> int:
    if USER_ERROR in codes:
        return USER_ERROR  # that process has reported why
    if stop.received is not None:
        return stop.exit_code
    if not failed or (len(set(codes)) == 1 and codes[0] in answers):
        return max(code or 0 for code in codes)
    number = next((number for number in failed if codes[number] != LOST), failed[0])
    code = codes[number]
    assert code is not None
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    raise UserError(
        f"process {number} of {len(codes)} {how}, and the others were stopped: run the same command to resume "
        "from the newest checkpoint"
    )
