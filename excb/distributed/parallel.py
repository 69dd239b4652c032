"""Process groups: join one, run work in it, average gradients over it. Models know nothing of it.

Processes are started by `excb.distributed.launch` (`--gpus N`), torchrun or Slurm, which set RANK and WORLD_SIZE.
"""

import atexit
import hashlib
import inspect
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist

# torch._dynamo imports this module late, and its default arguments would then hold the group for good: gloo's threads
# would outlive `destroy_process_group`, and now and then abort the program at its end. Imported early, they are None.
import torch.distributed.nn.functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from excb.console import plural
from excb.distributed.collectives import join_store, world_size
from excb.distributed.heartbeat import watched
from excb.distributed.launcher import LOST, check_environment, exit_at_once, started_together, whole_number
from excb.distributed.machine import choose_device
from excb.errors import UserError, first_line, is_rank0, print_error, user_error_of

# What gloo and NCCL report when the other side is gone.
_LOST_WORDS = ("Connection closed by peer", "Connection reset by peer", "ncclRemoteError", "remote process exited")

# How long a process waits for another one. Rank 0 may take this long to scan a large folder on a slow disk.
TIMEOUT = timedelta(minutes=30)
STORE_SECONDS = 10.0  # for the launcher's store, which is there before any process that needs it

Compression = Literal["none", "bf16", "fp16", "powersgd"]
POWERSGD_RANK = 4  # of the matrices that stand for a gradient
POWERSGD_START = 1000  # steps at first whose gradients travel whole, since they change fastest (torch's default)


class LostProcessError(Exception):
    """Another process of the run is gone."""


@contextmanager
def joined(device: str, *, stay: bool = False) -> Iterator[torch.device]:
    """Join the process group, if there is one, and give this process's device for the recipe's (cpu, cuda or auto).

    A group that is there already is used and stays, whether the program made it or an earlier call.

    Args:
        device: cpu, cuda or auto.
        stay: leave the group at the program's end, not here: the processes of a script may join only once.

    Raises:
        UserError: there is no such device here, fewer GPUs than processes, or an environment that no launcher sets.
        LostProcessError: another process ended in the middle of the run.
    """
    if not started_together():
        yield choose_device(device)
        return
    check_environment()
    place = _own_device(device)
    if dist.is_initialized():
        yield place
        return
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        _check_store(os.environ["MASTER_ADDR"], whole_number("MASTER_PORT", 0))
    # gloo beside NCCL: small agreements between processes must not wait for a GPU.
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=TIMEOUT, device_id=place if place.type == "cuda" else None)
    except (ValueError, dist.DistError) as error:
        raise _refusal(error) from None
    if stay:
        atexit.register(_leave)
        yield place
        return
    try:
        yield place
    except UserError as error:
        if not error.rank_local:
            dist.destroy_process_group()  # raised on all ranks: no collective is pending
        raise
    except RuntimeError as error:
        if any(word in str(error) for word in _LOST_WORDS):
            raise LostProcessError(str(error).splitlines()[0]) from None
        raise
    dist.destroy_process_group()  # not after other errors, when it would wait for lost processes


def _refusal(error: Exception) -> UserError:
    text = str(error)
    if "EADDRINUSE" in text or "address already in use" in text.lower():
        return UserError(
            f"port {os.environ['MASTER_PORT']} of this machine is taken, perhaps by another run: set MASTER_PORT, or "
            "torchrun's --master-port, to another one, or start torchrun with --standalone, which takes a free one"
        )
    return UserError(f"this process cannot join the others ({first_line(error)}): start it with --gpus N or torchrun")


def _check_store(host: str, port: int) -> None:
    """Raise UserError unless the launcher's store answers. It was there before this process; torch would wait for it.

    A launcher that was killed while this process started has left none.
    """
    end = time.monotonic() + STORE_SECONDS
    while True:
        try:
            with socket.create_connection((host, port), STORE_SECONDS):
                return
        except OSError as error:
            if time.monotonic() > end:
                raise UserError(
                    f"the launcher does not answer at {host}:{port} ({error.strerror}): it has ended, start again"
                ) from None
        time.sleep(STORE_SECONDS / 20)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _own_device(device: str) -> torch.device:
    """This process's device: on GPUs the one of its local rank."""
    here, local = whole_number("LOCAL_WORLD_SIZE", 1, least=1), whole_number("LOCAL_RANK", 0)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    own = f"cuda:{local}" if device == "cuda" else device
    if device == "cuda" and here > torch.cuda.device_count():
        raise UserError.on_all_ranks(
            f"{plural(here, 'process was', 'processes were')} started here for "
            f"{plural(torch.cuda.device_count(), 'GPU')}: start one process "
            "per GPU, or choose the device cpu"
        )
    try:
        resolved = choose_device(own)
    except UserError as error:
        error.already_reported = own == device and not is_rank0()  # the same error on every rank
        raise
    if resolved.type == "cuda":
        torch.cuda.set_device(resolved)
    return resolved


def run_joined(program: str, device: str, work: Callable[[torch.device], int]) -> int:
    """Join the process group, do the work, and return its exit code. One of several processes exits with it at once.

    One rank reports an error that several raise. The exit code is `LOST` where another process is gone. A hung process
    is reported, and the others exit (`excb.distributed.heartbeat`).

    Raises:
        UserError: from `joined` or the work, in a run of one process.
    """
    several, code = False, 1
    try:
        with joined(device) as place:
            several = world_size() > 1
            with watched(program):
                code = _once(work, place) if several else work(place)
    except LostProcessError as error:
        sys.stderr.write(f"{program}: another process is gone ({error})\n")
        code = LOST
    except Exception as error:
        if not several:
            raise
        if isinstance(error, UserError):
            code = print_error(program, error)
        else:
            traceback.print_exc()
    if several:
        exit_at_once(code)  # torch's clean-up at a normal exit would wait for lost processes, or abort
    return code


def _once(work: Callable[[torch.device], int], place: torch.device) -> int:
    """Do the work. Of equal errors on several ranks only the first is reported."""
    try:
        return work(place)
    except Exception as error:
        if (user_error := user_error_of(error)) is None:
            raise
        if user_error is not error:
            user_error.rank_local = True  # such as a full disk, which only this rank may have met
        if not user_error.already_reported:
            name = hashlib.sha256(str(user_error).encode()).hexdigest()
            # Not a collective, since the other ranks may be elsewhere.
            user_error.already_reported = join_store().add(f"excb/{name}", 1) > 1
        raise user_error from None


def average_gradients(
    model: nn.Module, *, compression: Compression = "none", static_graph: bool = False, bucket_mb: float = 25.0
) -> DistributedDataParallel | None:
    """Wrap a module so that its backward pass averages gradients over all ranks. None in a run of one process.

    A bucket of gradients travels while the backward pass computes those of earlier layers; nothing else overlaps.

    Args:
        model: the module, on its device.
        compression: how gradients travel: as they are, rounded to 16 bits, or as matrices of low rank (PowerSGD, whose
            error feedback stays in this process).
        static_graph: every step uses the same parameters in the same order.
        bucket_mb: MiB of gradients that travel together, at most.
    """
    if world_size() == 1:
        return None
    # Buffers are equal on all ranks anyway. torch 2.15 renames the option that would broadcast them.
    parameters = inspect.signature(DistributedDataParallel).parameters
    option = "forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers"
    options: dict[str, Any] = {option: False, "static_graph": static_graph, "bucket_cap_mb": bucket_mb}
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True, **options)
    if compression == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=POWERSGD_START
        )
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif compression != "none":
        hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
        parallel.register_comm_hook(None, hooks[compression])
    return parallel
