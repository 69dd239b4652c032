"""A block in which PyTorch must not wait for a GPU: whatever does raises an error."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_waiting_for_a_gpu() -> Iterator[None]:
    """Raise RuntimeError from calls that wait for a GPU. What ran before has ended when the block begins."""
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature", UserWarning)
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
