"""The machine: which device computes, how many processes read images, and who answers signals."""

import os
import signal

import torch

from excb.errors import UserError

MOST_WORKERS = 8


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is a GPU where there is one.

    Raises:
        UserError: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # the meta device makes tensors, but computes nothing
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device '{name}' cannot be used here ({reason}): use cpu, cuda or auto") from None
    return device


def worker_count(wanted: int) -> int:
    """Processes that read images: as many as wanted, or for -1 one per core that this process may use, at most 8."""
    if wanted >= 0:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_WORKERS, cores)


def leave_signals_to_parent(_worker: int) -> None:
    """Start of a worker process: Ctrl-C and SIGTERM reach the whole process group, but only the parent answers them.

    A worker that died of them would take the parent down in the middle of a step. Workers end with their parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
