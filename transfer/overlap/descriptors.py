"""Descriptors that images are compared by: whitened features, and perceptual hashes. Both give rows for cosines."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from excb.console import Reporter, plural
from excb.distributed.collectives import rank
from excb.errors import require
from excb.features.extraction import features_of
from excb.images.image_set import Images
from excb.images.subset import Subset
from excb.neighbours.unit_rows import Rows

from ..task import Task
from .altered import mirrored
from .hashing import BITS

FITTED, AT_ONCE = 20_000, 8192  # rows that whitening is fitted to; rows that are whitened together
WIDTH, FLOOR = 256, 1e-3  # of whitened features; the least variance that is scaled up, relative to the largest
# Train images for each direction. With no more images than directions, whitened train images are at right angles to one
# another, and new images are not: thresholds chosen by the former would find the latter everywhere.
EACH = 6
NAMED = 3  # unreadable images that a warning names
LEAST = 1e-20  # where all variances are 0


class Descriptor(Protocol):
    """Gives rows [N, D] of images, whose cosines say how alike two images are."""

    @property
    def name(self) -> str:
        """Its name: "features" or "hash"."""

    def rows(self, images: Images, name: str, reporter: Reporter) -> Tensor:
        """[N, D] float32 on the CPU; `name` is what messages call the set. All ranks call this."""

    def both(self, images: Images, name: str, reporter: Reporter) -> tuple[Tensor, Tensor]:
        """`rows` of the images, and of their mirror images."""


@dataclass(frozen=True)
class PerceptualHashes:
    """Perceptual hashes.

    Args:
        task: whose backbone is a `PerceptualHash`.
    """

    task: Task
    name: str = "hash"

    def rows(self, images: Images, name: str, reporter: Reporter) -> Tensor:
        """See `Descriptor.rows`: [N, 64] of -1 and 1."""
        return self.both(images, name, reporter)[0]

    def both(self, images: Images, name: str, reporter: Reporter) -> tuple[Tensor, Tensor]:
        """See `Descriptor.both`."""
        whole = self.task.stored(images, f"{name} (hash)", reporter).all()
        return whole[:, :BITS], whole[:, BITS:]

    def readable(self, images: Images, name: str, reporter: Reporter) -> tuple[Images, tuple[Tensor, Tensor]]:
        """The images that can be read, and their hashes as `both` gives them; all ranks call this.

        Raises:
            UserError: no image can be read.
        """
        extraction = replace(self.task.extraction(images), unreadable="nan")
        own_reporter = reporter if rank() == 0 else Reporter(quiet=True)
        rows = features_of(extraction, None, own_reporter, name=f"{name} (hash)").all()
        kept = ~rows[:, 0].isnan()
        if not kept.all():
            missing = [images.paths[index] for index in (~kept).nonzero()[:NAMED, 0].tolist()]
            require(bool(kept.any()), f"no image of {images.root} can be read, such as {missing[0]}")
            own_reporter.warn(
                f"{int((~kept).sum())} of {plural(len(images), 'image')} of {images.root} cannot be read and "
                "are left out: " + ", ".join(missing)
            )
            images, rows = Subset(images, kept.nonzero()[:, 0].numpy()), rows[kept]
        return images, (rows[:, :BITS], rows[:, BITS:])


@dataclass(frozen=True)
class Whitening:
    """A linear map after which the rows that it was fitted to have mean 0 and equal variances: cosines tell more apart.

    Args:
        mean: [D] float64.
        matrix: [D, W] float64.
    """

    mean: Tensor
    matrix: Tensor

    @classmethod
    def fit(cls, rows: Rows) -> "Whitening":
        """Fit to evenly spaced rows; directions of least variance are left out beyond `most_directions`."""
        step = max(1, len(rows) // FITTED)
        parts = [
            rows.rows(start, min(start + AT_ONCE, len(rows)))[::step].double() for start in range(0, len(rows), AT_ONCE)
        ]
        count = sum(map(len, parts))
        mean = torch.stack([part.sum(0) for part in parts]).sum(0) / count
        covariance = torch.stack([(part - mean).T @ (part - mean) for part in parts]).sum(0) / count
        variances, directions = torch.linalg.eigh(covariance)  # ascending
        width = most_directions(len(rows))
        variances, directions = variances[-width:], directions[:, -width:]
        least = (FLOOR * variances[-1]).clamp(min=LEAST)
        return cls(mean, directions / variances.clamp(min=least).sqrt())

    def __call__(self, rows: Rows) -> Tensor:
        """[N, W] float32 of rows [N, D], read some thousand at a time."""
        parts = [
            ((rows.rows(start, min(start + AT_ONCE, len(rows))).double() - self.mean) @ self.matrix).float()
            for start in range(0, len(rows), AT_ONCE)
        ]
        return torch.cat(parts)


def most_directions(images: int) -> int:
    """The most directions that whitening by this many images keeps."""
    return min(WIDTH, max(1, images // EACH))


@dataclass(frozen=True)
class WhitenedFeatures:
    """Features of a backbone, whitened by those of the train images."""

    task: Task
    whitening: Whitening
    name: str = "features"

    def rows(self, images: Images, name: str, reporter: Reporter) -> Tensor:
        """See `Descriptor.rows`."""
        return self.whitening(self.task.stored(images, name, reporter))

    def both(self, images: Images, name: str, reporter: Reporter) -> tuple[Tensor, Tensor]:
        """See `Descriptor.both`."""
        flipped = mirrored(images)
        return self.rows(images, name, reporter), self.rows(flipped, f"{name}, mirrored", reporter)
