"""Some images of a set, read from it wherever it keeps them."""

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
    """The chosen images of a set, in the order chosen.

    Args:
        whole: the set.
        chosen: indices into it, int64 [N].
    """

    whole: Images
    chosen: np.ndarray

    def __len__(self) -> int:
        """Number of images."""
        return len(self.chosen)

    @property
    def root(self) -> Path | str:
        """Of the whole set."""
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
        """A hash of the whole set's and of what was chosen."""
        return hashlib.sha256(f"{self.whole.fingerprint} {self.chosen.tolist()}".encode()).hexdigest()

    def stamp(self, index: int) -> str:
        """Another text once the image may have changed."""
        return self.whole.stamp(int(self.chosen[index]))

    def open(self, index: int) -> Image.Image:
        """One image as upright 8-bit RGB.

        Raises:
            BrokenImageError: it cannot be read.
        """
        return self.whole.open(int(self.chosen[index]))
