"""System limits that data-loading workers run into: open files, shared memory, cores."""

import os
import resource
from pathlib import Path

import torch

from excb.console import plural
from excb.distributed.machine import usable_cores

from .finding import Finding, size

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (only looked at)
QUOTA = Path("/sys/fs/cgroup/cpu.max")
TENSORS = 6  # per batch; each one in flight is an open file of the training process
OWN_FILES = 200  # open in Python, torch, sockets and logs


def check_open_files(workers: int, prefetch: int) -> Finding:
    """Check `ulimit -n` against what the workers of a process need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = OWN_FILES + workers * (4 + TENSORS * (prefetch + 1))
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    found = f"ulimit -n is {limit}; {plural(workers, 'worker')} {'needs' if workers == 1 else 'need'} about {need:,}"
    if soft == resource.RLIM_INFINITY or soft >= need:
        return Finding("open files", "ok", found)
    fix = f"ulimit -n {min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536}"
    if hard != resource.RLIM_INFINITY and hard < need:
        fix = f"ask an administrator to raise the hard limit of {hard:,}, or lower efficiency.workers or .prefetch"
    return Finding("open files", "error", found, fix)


def check_shared_memory(batch: int, workers: int, prefetch: int, processes: int) -> Finding:
    """Check shared memory against the batches in flight, which pass through it.

    `batch` is the bytes of one process's share of a batch; workers are those of each process.
    """
    if not workers:
        return Finding("shared memory", "ok", "not used: no workers")
    if not SHARED_MEMORY.is_dir():
        return Finding("shared memory", "ok", "this system has no /dev/shm, so no such limit")
    state = os.statvfs(SHARED_MEMORY)
    free, need = state.f_bavail * state.f_frsize, processes * workers * (prefetch + 1) * batch
    found = f"{size(free)} free in {SHARED_MEMORY}; batches in flight need up to {size(need)}"
    fix = "docker run --ipc=host or --shm-size, or lower efficiency.workers or .prefetch"
    if free < need:
        return Finding("shared memory", "error", found, f"{fix}: otherwise a run ends at its first batches")
    if free < 1.5 * need:
        return Finding("shared memory", "warning", found, fix)
    return Finding("shared memory", "ok", found)


def check_cores(workers: int, processes: int) -> Finding:
    """Check the available cores against threads and workers of all processes."""
    seen, allowed = usable_cores(), quota()
    cores = min(seen, allowed) if allowed is not None else seen
    threads = torch.get_num_threads()
    each = f"{plural(threads, 'thread')} and {plural(workers, 'worker')}"
    found = f"{cores:g} {'core' if cores == 1 else 'cores'}; {plural(processes, 'process', 'processes')} of {each}"
    if allowed is not None and allowed < seen:
        found += f" (the container may use {allowed:g} of the {seen} it sees)"
    if processes > 1 and threads * processes > cores and "OMP_NUM_THREADS" in os.environ:
        return Finding("cores", "warning", found, f"OMP_NUM_THREADS={max(1, int(cores // processes))}")
    if allowed is not None and threads > max(1, allowed):
        return Finding("cores", "warning", found, f"OMP_NUM_THREADS={max(1, int(allowed))}, efficiency.workers too")
    if workers * processes > cores:
        fix = f"efficiency.workers={max(1, int(cores // processes))}: more than one per core wait for each other"
        return Finding("cores", "warning", found, fix)
    return Finding("cores", "ok", found)


def quota() -> float | None:
    """The container's limit of CPU time in cores; None without one."""
    try:
        time, period = QUOTA.read_text(encoding="ascii").split()
        return None if time == "max" else int(time) / int(period)
    except (OSError, ValueError):
        return None
