"""The next batch's crops travel to the GPU while a step runs, on a stream of their own."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from .loader import Batch


def prefetch_to_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches in the same order; on a GPU, their crops are there when their step begins.

    One batch is read ahead, since its copy must start before the step that it hides behind: the crops of two batches,
    as bytes, are then in the GPU's memory. Parameters stay where they are: what they say decides on the CPU.

    Args:
        batches: in pinned memory, or copies wait.
        device: where the steps run.
    """
    if device.type != "cuda":
        yield from batches
        return
    stream, waiting = torch.cuda.Stream(device), None
    for batch in batches:
        with torch.cuda.stream(stream):
            following = _moved(batch, device), stream.record_event()
        if waiting is not None:
            yield _arrived(*waiting)
        waiting = following
    if waiting is not None:
        yield _arrived(*waiting)


def _moved(batch: Batch, device: torch.device) -> Batch:
    """Start the copies."""
    local = batch.local_crops
    return replace(
        batch,
        global_crops=batch.global_crops.to(device, non_blocking=True),
        local_crops=None if local is None else local.to(device, non_blocking=True),
    )


def _arrived(batch: Batch, copied: torch.cuda.Event) -> Batch:
    """Let the step's stream wait for the copies, and the memory's owner know that it uses them."""
    step = torch.cuda.current_stream()
    step.wait_event(copied)
    for crops in (batch.global_crops, batch.local_crops):
        if crops is not None:
            crops.record_stream(step)
    return batch
