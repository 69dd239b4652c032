"""Teachers' features of the training images, computed once and kept in the cache that evaluation uses."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from excb.console import Reporter, plural
from excb.distributed.machine import to_device
from excb.features.cache import CachedFeatures
from excb.features.extraction import Extraction, are_cached, features_of
from excb.images.image_set import Images
from excb.networks.features import Inputs, extract
from excb.references.untrained import evenly_spread

from .interface import Targets
from .teachers import Teacher

BATCH = 64  # images that a teacher sees at once
MAP_IMAGES = 256  # whose cells give the statistics of maps


class KeptTargets:
    """The teachers' outputs for whole images, computed once: the fast mode.

    Args:
        features: of every teacher, of all images.
        device: where they are wanted.
        dtype: in which they are wanted.
    """

    def __init__(self, features: Sequence[CachedFeatures], *, device: torch.device, dtype: torch.dtype) -> None:
        self._features, self._device, self._dtype = features, device, dtype

    def __call__(self, used: Tensor, views: Sequence[Tensor]) -> list[Targets]:
        """The targets of every teacher, [1, B, D], of images [B]; a view without an image has a negative number."""
        del views
        # Rows of zeros teach nothing: of images that the teacher could not read, and of views without an image.
        there = (used >= 0)[:, None]
        rows = [each.take(used.clamp(min=0)).nan_to_num(0.0) * there for each in self._features]
        return [Targets(to_device(each, self._device).to(self._dtype)[None]) for each in rows]


def features_of_teacher(
    teacher: Teacher, images: Images, cache: Path | None, reporter: Reporter, *, device: torch.device, workers: int
) -> CachedFeatures:
    """A teacher's features of a set in its own preprocessing, from the cache or computed; all ranks call this.

    A row of an image that cannot be read is NaN, and a warning counts them.

    Args:
        teacher: on its device.
        images: the set.
        cache: folder of cached features.
        reporter: for messages and progress.
        device: of the teacher.
        workers: processes that read images.
    """
    extraction = _extraction(teacher, images, device=device, workers=workers)
    features = features_of(extraction, cache, reporter, name=f"{plural(len(images), 'image')} by {teacher.name}")
    if unreadable := sum(int(part.isnan().any(1).sum()) for part in features.parts()):
        reporter.warn(
            f"{teacher.name} could not read {unreadable:,} of {plural(len(images), 'image')}: they teach nothing"
        )
    return features


def features_are_cached(teacher: Teacher, images: Images, cache: Path, *, device: torch.device) -> bool:
    """Whether `features_of_teacher` finds all features in the cache."""
    return are_cached(_extraction(teacher, images, device=device, workers=0), cache)


def _extraction(teacher: Teacher, images: Images, *, device: torch.device, workers: int) -> Extraction:
    return Extraction(
        backbone=teacher.backbone,
        preprocessing=teacher.transform,
        images=images,
        kind="pooled",
        device=device,
        batch=BATCH,
        workers=workers,
        unreadable="nan",
    )


class _Cells(nn.Module):
    def __init__(self, teacher: Teacher) -> None:
        super().__init__()
        self._teacher = teacher
        self.weights = teacher.backbone  # whose type the inputs take
        self.width = 0

    def forward(self, inputs: Tensor) -> Tensor:
        _, cells = self._teacher.look(inputs)
        assert cells is not None
        self.width = cells.shape[1]
        return cells.movedim(1, -1).flatten(1)


def cells_of_teacher(teacher: Teacher, images: Images, *, device: torch.device, workers: int) -> Tensor:
    """The cells [M, D] of a teacher's maps of some images."""
    reader = _Cells(teacher).eval()
    inputs = Inputs(evenly_spread(images, MAP_IMAGES), teacher.transform)
    rows = extract(reader, inputs, device=device, batch=BATCH, workers=workers).rows
    return rows.reshape(-1, max(1, reader.width))
