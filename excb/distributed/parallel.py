"""Many processes: joining them, BatchNorm over all of them, averaged gradients; models know nothing of it.

Processes are started by `excb.distributed.launch` (`--gpus N`) or by torchrun; both say who is who in the environment.
"""

import hashlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from excb.distributed.collectives import world_size
from excb.distributed.heartbeat import watched
from excb.distributed.machine import choose_device
from excb.distributed.signals import LOST, ending_with_launcher
from excb.errors import UserError, is_rank0, print_error

# How gloo and NCCL say that the other side is gone.
_LOST_WORDS = ("Connection closed by peer", "Connection reset by peer", "ncclRemoteError", "remote process exited")

# A process waits this long for another one: as long as process 0 may need to scan a large folder on a slow disk.
TIMEOUT = timedelta(minutes=30)


def started_together() -> bool:
    """Whether this process was started as one of several, or by torchrun."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


class LostProcessError(Exception):
    """Another process of the run is gone."""


@contextmanager
def joined(device: str) -> Iterator[torch.device]:
    """Join the other processes of the run, if there are any, and give this one's device.

    Args:
        device: the recipe's: cpu, cuda, or auto.

    Raises:
        UserError: there is no such device here, or fewer GPUs than processes.
        LostProcessError: another process ended in the middle of the run.
    """
    if not started_together():
        yield choose_device(device)
        return
    chosen = _own_device(device)
    # gloo beside NCCL: what processes agree on by the way must not wait for a GPU.
    backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
    try:
        with ending_with_launcher():
            dist.init_process_group(backend, timeout=TIMEOUT, device_id=chosen if chosen.type == "cuda" else None)
    except (ValueError, dist.DistError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"this process cannot join the others ({reason}): start it with --gpus N or torchrun") from None
    try:
        yield chosen
    except UserError as error:
        if not error.rank_local:
            dist.destroy_process_group()  # raised where all had met: nothing is under way
        raise
    except RuntimeError as error:
        if any(word in str(error) for word in _LOST_WORDS):
            raise LostProcessError(str(error).splitlines()[0]) from None
        raise
    dist.destroy_process_group()  # not after other errors: it would wait for processes that are gone


def _own_device(device: str) -> torch.device:
    """This process's device among those of the processes that were started on this machine."""
    here, local = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    own = f"cuda:{local}" if device == "cuda" else device
    if device == "cuda" and here > torch.cuda.device_count():
        raise UserError.on_all_ranks(
            f"{here} processes were started here, but there are {torch.cuda.device_count()} GPUs: start one process "
            "for each, or choose the device cpu",
        )
    try:
        chosen = choose_device(own)
    except UserError as error:
        error.already_reported = own == device and not is_rank0()  # the same mistake in every process
        raise
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return chosen


def run_joined(program: str, device: str, work: Callable[[torch.device], int]) -> int:
    """Join the other processes, do the work, and give its exit code; one of several processes leaves with it at once.

    A mistake that several processes find is told by one of them; `LOST` is the exit code where another one is gone. A
    process that hangs is named, and ends the others (`excb.distributed.heartbeat`).

    Raises:
        UserError: as `joined`, or of the work, in a process that is alone.
    """
    many = False
    try:
        with joined(device) as place:
            many = world_size() > 1
            with watched(program):
                code = _once(work, place) if many else work(place)
    except LostProcessError as error:
        sys.stderr.write(f"{program}: another process is gone ({error})\n")
        code = LOST
    except UserError as error:
        if not many:
            raise
        code = print_error(program, error)
    except Exception:
        if not many:
            raise
        traceback.print_exc()
        code = 1
    if many:
        _leave(code)
    return code


def _once(work: Callable[[torch.device], int], place: torch.device) -> int:
    """Do the work; of equal mistakes in several processes the first is told."""
    try:
        return work(place)
    except UserError as error:
        if not error.already_reported:
            store = dist.TCPStore(  # type: ignore[attr-defined]
                os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False
            )
            name = hashlib.sha256(str(error).encode()).hexdigest()
            error.already_reported = (
                store.add(f"excb/{name}", 1) > 1
            )  # asks nobody to wait: the others may be elsewhere
        raise


def _leave(code: int) -> NoReturn:
    """Leave at once: what torch does at a normal exit would wait for processes that are gone, or abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def average_gradients(model: nn.Module) -> DistributedDataParallel | None:
    """Wrap a module so that its backward pass averages gradients over all processes; None where there is but one."""
    if world_size() == 1:
        return None
    # Buffers are equal in all processes anyway. torch 2.15 has another name for leaving them alone.
    known = inspect.signature(DistributedDataParallel).parameters
    option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {option: False}
    return DistributedDataParallel(model, gradient_as_bucket_view=True, **options)
