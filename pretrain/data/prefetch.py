"""Prefetch to the GPU: the next batch's crops are copied on a stream of their own while a step runs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch

from .batch import ViewBatch


def prefetch_to_device(
    batches: Iterable[ViewBatch], device: torch.device, decode: Callable[[ViewBatch], ViewBatch] | None = None
) -> Iterator[ViewBatch]:
    """Yield the same batches in the same order; on a GPU, with their crops already copied to it.

    `decode` adds the crops that only the GPU makes (`gpu_decoding`), on the same stream as the copies.

    One batch is prefetched: its copy must start before the step that hides it. The GPU then holds the crops of two
    batches, as bytes. Parameters stay on the CPU, which decides by them which operations to launch. Without pinned
    memory the copies are synchronous.
    """
    decode = decode or (lambda batch: batch)
    if device.type != "cuda":
        yield from map(decode, batches)
        return
    stream, waiting = torch.cuda.Stream(device), None
    for read in batches:
        with torch.cuda.stream(stream):
            batch = decode(read)
            local = None if batch.local_crops is None else batch.local_crops.to(device, non_blocking=True)
            crops = batch.global_crops.to(device, non_blocking=True)
            following = replace(batch, global_crops=crops, local_crops=local), stream.record_event()
        if waiting is not None:
            yield _wait_for_copy(*waiting)
        waiting = following
    if waiting is not None:
        yield _wait_for_copy(*waiting)


def _wait_for_copy(batch: ViewBatch, copied: torch.cuda.Event) -> ViewBatch:
    """Let the step's stream wait for the copies, and record in the allocator that it uses them."""
    step = torch.cuda.current_stream()
    step.wait_event(copied)
    for crops in (batch.global_crops, batch.local_crops):
        if crops is not None:
            crops.record_stream(step)
    return batch
