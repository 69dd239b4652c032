"""The machine: which device computes, how many processes read images, and who answers signals."""

import multiprocessing.connection
import os
import resource
import signal
import sys
import threading
from pathlib import Path

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
    """Processes that read images: as many as wanted, or for -1 one per core that this process may use, at most 8.

    Processes that train together on one machine share its cores.
    """
    if wanted >= 0:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_WORKERS, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def peak_memory(device: torch.device) -> int:
    """Most memory used so far in bytes: of the GPU by tensors, or on the CPU of this process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def available_memory() -> int:
    """Main memory in bytes that can still be taken without swapping, within the limit of the container if there is one.

    Where the system does not tell, all that the machine has.
    """
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii") for name in ("max", "current"))
        return min(available, int(limit) - int(used))
    except (OSError, StopIteration, ValueError):  # no Linux, or no container, or one without a limit ("max")
        return available


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
