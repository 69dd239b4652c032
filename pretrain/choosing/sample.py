"""The images of an experiment: some that short runs learn from, and others, which none of them sees, to measure on."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from excb import seeding
from excb.errors import UserError
from excb.images.image_set import CodedImages, FiledImages
from excb.images.subset import Subset

MEASURED = 1000  # images at most; half the set if it is small
LEARNED = 2500  # at most
FEWEST = 100  # of either, below which intervals are too wide


@dataclass(frozen=True)
class TrialImages:
    """Images to learn from and images to measure on, of one set."""

    learned: Subset
    measured: Subset

    @property
    def labelled(self) -> bool:
        """Whether k-NN by labels can be measured."""
        return self.measured.labels is not None and self.measured.classes is not None


def draw_images(images: CodedImages, labelled: FiledImages | None = None) -> TrialImages:
    """Divide a set, or as much of it as an experiment reads; the same images every time.

    Args:
        images: all images.
        labelled: those with labels, where a table names them: they are measured, and the others are learned from.

    Raises:
        UserError: a table names files, and the images are none.
    """
    random = seeding.generator(seeding.Purpose.MONITOR, 0)
    if labelled is None:
        order = random.permutation(len(images))
        measured = min(MEASURED, len(order) // 2)
        return TrialImages(
            Subset(images, _sorted(order[measured : measured + LEARNED])), Subset(images, _sorted(order[:measured]))
        )
    if not isinstance(images, FiledImages):
        raise UserError(f"--labels names files, and {images.root} holds none: leave it out")
    chosen = _sorted(random.permutation(len(labelled))[:MEASURED])
    files = _files(labelled)  # a table's paths may start in another folder
    known = {files[index] for index in chosen.tolist()}
    rest = np.array([index for index, file in enumerate(_files(images)) if file not in known], np.int64)
    return TrialImages(Subset(images, _sorted(random.permutation(rest)[:LEARNED])), Subset(labelled, chosen))


def _files(images: FiledImages) -> list[Path]:
    root = Path(images.root).resolve()
    return [root / path for path in images.paths]


def _sorted(indices: np.ndarray) -> np.ndarray:
    return np.sort(indices).astype(np.int64)
