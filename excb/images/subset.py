"""Some images of a set."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from excb.images.image_set import Images


@dataclass(frozen=True)
class Subset:
    """The images `chosen` of a set, by their indices in it, int64 [N]."""

    whole: Images
    chosen: np.ndarray

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def root(self) -> Path | str:
        """Root of the whole set."""
        return self.whole.root

    @cached_property
    def paths(self) -> Sequence[str]:
        """The images' names in the whole set."""
        return [self.whole.paths[index] for index in self.chosen.tolist()]

    @property
    def labels(self) -> np.ndarray | None:
        """Class indices, int64 [N]."""
        return None if self.whole.labels is None else self.whole.labels[self.chosen]

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names of the whole set."""
        return self.whole.classes

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the whole set's fingerprint and the indices."""
        return hashlib.sha256(f"{self.whole.fingerprint} {self.chosen.tolist()}".encode()).hexdigest()

    def stamp(self, index: int) -> str:
        """See `Images.stamp`."""
        return self.whole.stamp(int(self.chosen[index]))

    def open(self, index: int) -> Image.Image:
        """See `Images.open`."""
        return self.whole.open(int(self.chosen[index]))
