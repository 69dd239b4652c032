"""The machine: the device that computes, whether our Triton kernels can run on it, and memory."""

import importlib.util
import os
import resource
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from excb.errors import UserError


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device; on a GPU through page-locked memory, so that the CPU does not wait."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def start_copy(tensor: Tensor, stream: torch.cuda.Stream | None = None) -> Callable[[], Tensor]:
    """Start to copy a tensor to the CPU; what is returned waits for the copy, and returns it.

    It lets the CPU read a step's figures while the next step runs. On a `stream` of its own the copy does not delay the
    next step either. A tensor of the CPU is returned as it is.
    """
    if not tensor.is_cuda:
        return lambda: tensor
    current = torch.cuda.current_stream(tensor.device)
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    if stream is not None:
        stream.wait_event(current.record_event())
        tensor.record_stream(stream)
    with torch.cuda.stream(stream or current):
        host.copy_(tensor, non_blocking=True)
    copied = (stream or current).record_event()

    def wait() -> Tensor:
        copied.synchronize()
        return host

    return wait


def choose_device(name: str) -> torch.device:
    """The device of a name; `auto` is a GPU if possible, else the CPU. Raises UserError if it is not available."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # the meta device creates tensors, but computes nothing
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]  # torch adds all devices that it was built for
        raise UserError(f"device '{name}' cannot be used here ({reason}): use cpu, cuda or auto") from None
    return device


def triton_obstacle(device: torch.device) -> str:
    """Why our Triton kernels cannot run on a device; empty where they can."""
    if device.type != "cuda":
        return "needs a CUDA device"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or newer"
    return "" if importlib.util.find_spec("triton") else "needs Triton, which is not installed"


def current_device(device: torch.device) -> AbstractContextManager[Any]:
    """While the block runs, `device` is the current GPU, on which Triton launches; nothing for other devices."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: of tensors on a GPU, or of this process's resident set on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def available_memory() -> int:
    """Main memory in bytes that can still be allocated without swapping, within the limit of a container.

    Where the system does not report it, all memory of the machine.
    """
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii") for name in ("max", "current"))
        return min(available, int(limit) - int(used))
    except (OSError, StopIteration, ValueError):  # not Linux, not a container, or one without a limit ("max")
        return available
