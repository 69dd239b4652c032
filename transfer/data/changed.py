"""Images that differ from those of a set in their pixels alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from excb.images.image_set import Images
from excb.images.pixels import Pixels, pixels_of


@dataclass(frozen=True)
class ChangedImages:
    """Named and labelled as the images of `whole`; a kind of change adds `open`, and a `fingerprint` of its own."""

    whole: Images

    def __len__(self) -> int:
        return len(self.whole)

    @property
    def root(self) -> Path | str:
        """Root of the originals."""
        return self.whole.root

    @property
    def paths(self) -> Sequence[str]:
        """Names of the originals."""
        return self.whole.paths

    @property
    def labels(self) -> np.ndarray | None:
        """Labels of the originals."""
        return self.whole.labels

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Classes of the originals."""
        return self.whole.classes

    @property
    def pixels(self) -> Pixels:
        """Of the originals."""
        return pixels_of(self.whole)

    def stamp(self, index: int) -> str:
        """See `Images.stamp`."""
        return self.whole.stamp(index)
