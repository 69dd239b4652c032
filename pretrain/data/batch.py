"""A training batch: crops of B images with the parameters of their augmentation, and which images they show."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .sampler import SampleRef

NO_IMAGE = -1  # index of the image used where neither the scheduled one nor any replacement could be read


class Broken(NamedTuple):
    """A file that could not be read, and the image used instead."""

    path: str
    reason: str
    replacement: str


# One image's views as a worker returns them: where it was due, the index of the image used, crops and parameters of the
# global views and then of the local ones (see `ViewMaker.cut`), and the files that could not be read.
Item = tuple[SampleRef, int, list[np.ndarray], list[Broken]]


@dataclass(frozen=True)
class Batch:
    """The views of B images, before augmentation."""

    global_crops: Tensor  # [G, B, S, S, 3] uint8
    global_parameters: Tensor  # [G, B, P]
    local_crops: Tensor | None  # [L, B, s, s, 3] uint8
    local_parameters: Tensor | None  # [L, B, P]
    samples: Tensor  # [B] int64: the images scheduled, which key the random numbers
    used: Tensor  # [B] int64: the images that the views show, or NO_IMAGE
    broken: list[Broken]
    position: int = 0  # of the first image, in the epoch

    def pin_memory(self) -> "Batch":
        """Move what a step copies to the GPU to page-locked memory (called by the loader)."""
        local = self.local_crops.pin_memory() if self.local_crops is not None else None
        return replace(
            self, global_crops=self.global_crops.pin_memory(), local_crops=local, samples=self.samples.pin_memory()
        )

    def split(self, parts: int) -> list["Batch"]:
        """Equal micro-batches, in order; the first holds the list of broken files."""
        if parts == 1:
            return [self]
        rows, batches = len(self.samples) // parts, list[Batch]()
        views = self.global_crops, self.global_parameters, self.local_crops, self.local_parameters
        for first in range(0, parts * rows, rows):
            cut: list[Any] = [None if tensor is None else tensor[:, first : first + rows] for tensor in views]
            samples, used = (tensor[first : first + rows] for tensor in (self.samples, self.used))
            cut += [samples, used, [] if first else self.broken, self.position + first]
            batches.append(Batch(*cut))
        return batches


def collate(items: Sequence[Item]) -> Batch:
    """Stack the views of a batch's images view by view."""
    stacks = [torch.from_numpy(np.stack(arrays, axis=1)) for arrays in zip(*(item[2] for item in items), strict=True)]
    local_crops, local_parameters = stacks[2:] if len(stacks) == 4 else (None, None)
    return Batch(
        stacks[0],
        stacks[1],
        local_crops,
        local_parameters,
        torch.tensor([item[0].sample for item in items]),
        torch.tensor([item[1] for item in items]),
        [broken for item in items for broken in item[3]],
        items[0][0].position,
    )
