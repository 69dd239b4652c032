"""Collectives over all processes; with one process each is the identity, so the method runs anywhere."""

import torch.distributed as dist
from torch import Tensor


def mean_over_ranks(value: Tensor) -> Tensor:
    """Return the mean of `value` over all processes, equal on all of them; `value` itself may be overwritten."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return value
