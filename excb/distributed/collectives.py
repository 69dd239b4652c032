"""Collectives over all ranks. In a run of one process each is the identity, so that all code runs anywhere."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from excb.errors import UserError, as_user_error

T = TypeVar("T")
CPU = torch.device("cpu")


def world_size() -> int:
    """Number of processes in the process group, 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's rank, from 0. Only rank 0 writes files and prints."""
    return dist.get_rank() if world_size() > 1 else 0


def sum_over_ranks(value: Tensor) -> Tensor:
    """Return the sum of `value` over all processes, equal on all of them; `value` itself may be overwritten."""
    if world_size() > 1:
        dist.all_reduce(value)
    return value


def mean_over_ranks(value: Tensor) -> Tensor:
    """Return the mean of `value` over all processes, equal on all of them; `value` itself may be overwritten."""
    if world_size() > 1:
        value = sum_over_ranks(value)
        value /= world_size()
    return value


def logsumexp_over_ranks(value: Tensor) -> Tensor:
    """Return log(sum of exp(value)) over all processes, equal on all of them."""
    if world_size() > 1:
        peak = value.clone()
        dist.all_reduce(peak, dist.ReduceOp.MAX)
        total = (value - peak).exp_()
        dist.all_reduce(total)
        value = total.log_().add_(peak)
    return value


def broadcast(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors with those of rank 0."""
    if world_size() > 1:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)


def gather_rows(rows: Tensor) -> Tensor:
    """Concatenate the rows of all ranks in order: [R, ...] each -> [world_size * R, ...] on all."""
    if world_size() == 1:
        return rows
    rows = rows.contiguous()
    gathered = rows.new_empty(world_size() * len(rows), *rows.shape[1:])
    _all_gather(gathered, rows)
    return gathered


def _all_gather(gathered: Tensor, rows: Tensor) -> None:
    # The name in newer releases of torch, some of which warn of the earlier one.
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    getattr(dist, name)(gathered, rows)


class _GatherRows(torch.autograd.Function):
    """`gather_rows` with a gradient: what all ranks make of a rank's rows, summed."""

    @staticmethod
    def forward(_context: Any, rows: Tensor) -> Tensor:
        return gather_rows(rows)

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(world_size())[rank()]


def gather_rows_with_gradient(rows: Tensor) -> Tensor:
    """`gather_rows` for rows of which each rank has equally many; gradients flow back to the rank that each is from."""
    gathered: Tensor = _GatherRows.apply(rows) if world_size() > 1 else rows
    return gathered


def gather_numbers(numbers: Sequence[int]) -> Tensor:
    """A few integers of every rank, [world_size, numbers]. They travel over the CPU, so no GPU is waited for."""
    return gather_rows(torch.tensor([numbers]))


def join_store() -> Any:
    """The store that the launcher keeps for the processes of the run."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]


def gather_objects(value: T) -> list[T]:
    """The values of all ranks, on all ranks."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def run_on_rank0(make: Callable[[], T]) -> T:
    """Broadcast what `make` returns on rank 0, its only caller. All ranks raise its UserError, which rank 0 reports."""
    if world_size() == 1:
        return make()
    box: list[Any] = [None, None]
    if rank() == 0:
        try:
            box = [make(), None]
        except UserError as error:
            box = [None, str(error)]
    dist.broadcast_object_list(box, device=CPU)
    value, message = box
    if message is not None:
        raise UserError(message, already_reported=rank() > 0)
    return value  # type: ignore[no-any-return]


def all_succeed(make: Callable[[], T]) -> T:
    """Return what `make` returns, once it has succeeded on all ranks. It must use no collective itself.

    Raises:
        UserError: it was raised on some ranks, the first of which reports it.
    """
    if world_size() == 1:
        return make()
    value, message = None, None
    try:
        value = make()
    except (UserError, OSError) as error:
        if (user_error := error if isinstance(error, UserError) else as_user_error(error)) is None:
            raise
        message = str(user_error)
    messages = gather_objects(message)
    failed = [number for number, text in enumerate(messages) if text is not None]
    if failed:
        where = "" if len(failed) == world_size() else f"process {failed[0]} of {world_size()}: "
        raise UserError(f"{where}{messages[failed[0]]}", already_reported=rank() != failed[0])
    return value  # type: ignore[return-value]
