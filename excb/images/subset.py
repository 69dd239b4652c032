"""Some images of a set."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from excb.images.image_set import Images
from excb.images.pixels import Pixels, Source, pixels_of


@dataclass(frozen=True)
class Subset:
    """Some images of a set, by their indices in it, int64 [N]."""

    images: Images
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def root(self) -> Path | str:
        """Root of the whole set."""
        return self.images.root

    @cached_property
    def paths(self) -> Sequence[str]:
        """The images' names in the whole set."""
        return [self.images.paths[index] for index in self.indices.tolist()]

    @property
    def labels(self) -> np.ndarray | None:
        """Class indices, int64 [N]."""
        return None if self.images.labels is None else self.images.labels[self.indices]

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names of the whole set."""
        return self.images.classes

    @property
    def pixels(self) -> Pixels:
        """How stored values of all images become channels; see `pixels_of`."""
        return pixels_of(self.images)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the whole set's fingerprint and the indices."""
        return hashlib.sha256(f"{self.images.fingerprint} {self.indices.tolist()}".encode()).hexdigest()

    def stamp(self, index: int) -> str:
        """See `Images.stamp`."""
        return self.images.stamp(int(self.indices[index]))

    def source(self, index: int) -> Source:
        """See `CodedImages.source`, for sets that have it."""
        images: Any = self.images
        source: Source = images.source(int(self.indices[index]))
        return source

    def open(self, index: int) -> Any:
        """See `Images.open`."""
        return self.images.open(int(self.indices[index]))
