"""Patch retrieval as in Hummingbird: the nearest patches of a memory say which classes a patch has.

Balazevic et al., "Towards in-context scene understanding", 2023. Letters: Q patches, k neighbours, C classes.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from excb.distributed.collectives import run_on_rank0, world_size
from excb.distributed.machine import available_memory
from excb.neighbours.memory import search_memory
from excb.neighbours.nearest import nearest

from .memory import Memory

_AT_ONCE = 2**24  # numbers of a block of neighbours' shares: 64 MiB


def classifier(
    memory: Memory,
    *,
    k: int,
    temperature: float,
    queries: int,
    backend: Literal["auto", "faiss", "torch"],
    device: torch.device,
    note: Callable[[str], None] = lambda _line: None,
) -> Callable[[Tensor], Tensor]:
    """A function from patches [Q, D] to scores [Q, C]; all ranks call it together with the same patches.

    The score of a class is its mean share among the k nearest patches by cosine, weighted by the softmax of
    similarity / temperature.

    Args:
        memory: of patches.
        k: neighbours.
        temperature: of the weights.
        queries: patches of one call, to plan for.
        backend: of the search, which is exact with all of them.
        device: where to search.
        note: takes the plan, for people.
    """
    patches = memory.patches
    held = search_memory(len(patches), patches.width, queries, k, processes=world_size())
    # A bank that would fill the memory of the machine is read from the cache's files instead, tile by tile.
    streamed = run_on_rank0(lambda: held.total * world_size() > available_memory() / 2)
    note(
        (
            search_memory(len(patches), patches.width, queries, k, processes=world_size(), streamed=True)
            if streamed
            else held
        ).text
    )
    bank = patches if streamed else patches.whole

    def scores(rows: Tensor) -> Tensor:
        neighbours = nearest(bank, rows, k, backend=backend, share=world_size() > 1, device=device)
        weights = (neighbours.similarities / temperature).softmax(1).float()
        labels, numbers = memory.labels, patches.chosen[neighbours.indices.numpy()]
        result = torch.empty(len(rows), labels.classes)
        step = max(1, _AT_ONCE // (k * labels.classes))
        for start in range(0, len(rows), step):
            block = slice(start, start + step)
            shares = labels.shares(np.ravel(numbers[block])).view(-1, k, labels.classes)
            result[block] = torch.einsum("qk,qkc->qc", weights[block], shares)
        return result

    return scores
