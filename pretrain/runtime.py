"""The machine: device and worker processes."""

import os

import torch

from excb.errors import UserError

from .recipes import EfficiencySettings


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is a GPU where there is one.

    Raises:
        UserError: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device '{name}' cannot be used here ({reason}): use cpu, cuda or auto") from None
    return device


def worker_count(settings: EfficiencySettings) -> int:
    """Processes that read images: the recipe's number, or one per core this process may use, 8 at most."""
    if settings.workers >= 0:
        return settings.workers
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
