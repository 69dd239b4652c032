"""Images with their vectors and labels, as every export takes them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from excb.neighbours.unit_rows import Rows

AT_ONCE = 4096  # images that are handed over together


@dataclass(frozen=True)
class ExportedImages:
    """Images to hand over.

    Attributes:
        rows: vectors, read from the disk as they are needed.
        paths: the images' names below `root`.
        root: the folder, or the name of the source.
        labels: one per image, None without; None where no image has any.
        model: the name of what made the vectors.
    """

    rows: Rows
    paths: Sequence[str]
    root: str
    labels: Sequence[str | None] | None
    model: str

    def __len__(self) -> int:
        return len(self.paths)

    def parts(self) -> Iterator[tuple[range, np.ndarray]]:
        """Numbers of rows and their vectors [n, D], some thousand at a time."""
        for start in range(0, len(self), AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, len(self)))
            yield numbers, self.rows.rows(numbers.start, numbers.stop).numpy()

    def label(self, row: int) -> str | None:
        """The label of an image, if it has one."""
        return None if self.labels is None else self.labels[row]

    def path(self, row: int) -> str:
        """The path of an image; bytes that are not UTF-8 become escapes."""
        return self.paths[row].encode("utf-8", "backslashreplace").decode("utf-8")

    def file(self, row: int) -> str:
        """The absolute path of an image, if it is a file."""
        return str((Path(self.root) / self.path(row)).absolute())
