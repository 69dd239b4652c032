"""A training batch: crops of B images with the parameters of their augmentation, and which images they show."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from excb.images.random_crops import Box

from .sampler import SampleRef

NO_IMAGE = -1  # index of the image used where neither the scheduled one nor any replacement could be read


class Broken(NamedTuple):
    """A file that could not be read, and the image used instead."""

    path: str
    reason: str
    replacement: str


class Item(NamedTuple):
    """One image's views as a worker returns them."""

    ref: SampleRef  # where it was due
    used: int  # index of the image used
    arrays: list[np.ndarray]  # crops and parameters of the global views, then of the local ones (see `ViewMaker.cut`)
    broken: list[Broken]  # files that could not be read
    # A JPEG that is decoded on the GPU, and the boxes of its views: then no crop is in the arrays (`ViewMaker.plan`).
    jpeg: bytes | None = None
    boxes: list[Box] | None = None


@dataclass(frozen=True)
class Jpegs:
    """Images of a batch that are not decoded yet."""

    refs: list[tuple[int, SampleRef]]  # the place of each in the batch, and in the run
    content: Tensor  # their files, one after the other, uint8
    lengths: list[int]  # of the files, in bytes
    boxes: list[list[Box]]  # of the views of each


@dataclass(frozen=True)
class ViewBatch:
    """The views of B images, before augmentation."""

    global_crops: Tensor  # [G, B, S, S, C] uint8
    global_parameters: Tensor  # [G, B, P]
    local_crops: Tensor | None  # [L, B, s, s, C] uint8
    local_parameters: Tensor | None  # [L, B, P]
    samples: Tensor  # [B] int64: the images scheduled, which key the random numbers
    used: Tensor  # [B] int64: the images that the views show, or NO_IMAGE
    broken: list[Broken]
    position: int = 0  # of the first image, in the epoch
    # With these, the crops are of the other images alone, in their order, until `GpuDecoder` adds what is missing.
    jpegs: Jpegs | None = None

    @property
    def crops(self) -> list[Tensor]:
        """The global crops, then the local ones, where there are any."""
        return [crops for crops in (self.global_crops, self.local_crops) if crops is not None]

    def pin_memory(self) -> "ViewBatch":
        """Move what a step copies to the GPU to page-locked memory (called by the loader)."""
        local = None if self.local_crops is None else _pinned(self.local_crops)
        return replace(
            self, global_crops=_pinned(self.global_crops), local_crops=local, samples=self.samples.pin_memory()
        )

    def split(self, parts: int) -> list["ViewBatch"]:
        """Equal micro-batches, in order; the first holds the list of broken files."""
        if parts == 1:
            return [self]
        rows, batches = len(self.samples) // parts, list[ViewBatch]()
        views = self.global_crops, self.global_parameters, self.local_crops, self.local_parameters
        for first in range(0, parts * rows, rows):
            cut: list[Any] = [None if tensor is None else tensor[:, first : first + rows] for tensor in views]
            samples, used = (tensor[first : first + rows] for tensor in (self.samples, self.used))
            cut += [samples, used, [] if first else self.broken, self.position + first]
            batches.append(ViewBatch(*cut))
        return batches


def _pinned(crops: Tensor) -> Tensor:
    return crops.pin_memory() if crops.numel() else crops


def collate(items: Sequence[Item]) -> ViewBatch:
    """Stack the views of a batch's images view by view."""
    stacks = [_stacked(arrays) for arrays in zip(*(item.arrays for item in items), strict=True)]
    local_crops, local_parameters = stacks[2:] if len(stacks) == 4 else (None, None)
    return ViewBatch(
        stacks[0],
        stacks[1],
        local_crops,
        local_parameters,
        torch.tensor([item.ref.sample for item in items]),
        torch.tensor([item.used for item in items]),
        [broken for item in items for broken in item.broken],
        items[0].ref.position,
        _jpegs(items),
    )


def _stacked(arrays: Sequence[np.ndarray]) -> Tensor:
    """Parameters [views, P] of every image, or crops [views, S, S, C], where [views, 0, S, S, 3] are none."""
    if all(array.ndim < 5 for array in arrays):
        return torch.from_numpy(np.stack(arrays, axis=1))
    return torch.from_numpy(np.concatenate([each if each.ndim == 5 else each[:, None] for each in arrays], axis=1))


def _jpegs(items: Sequence[Item]) -> Jpegs | None:
    files = [(row, item.ref, item.jpeg, item.boxes) for row, item in enumerate(items) if item.jpeg is not None]
    if not files:
        return None
    content = torch.frombuffer(bytearray(b"".join(file for _, _, file, _ in files)), dtype=torch.uint8)
    refs = [(row, ref._replace(content=None)) for row, ref, _, _ in files]
    return Jpegs(refs, content, [len(file) for _, _, file, _ in files], [boxes or [] for *_, boxes in files])
