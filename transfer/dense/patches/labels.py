"""The classes of patches: how many pixels of each class every patch has, as sparse rows.

Letters: V views, P patches of a view, C classes.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..layouts.masks import IGNORED
from .features import Grid
from .views import Views


class PatchLabels:
    """Numbers of pixels by class of all patches of a set, V x P rows of which only the classes that occur are kept.

    Args:
        views: the set; every mask is read once.
        grid: of a view.
        progress: called with the number of views that are done.

    Attributes:
        classes: C.
        pixels: [C] int64, pixels of every class in all views.

    Raises:
        UserError: a mask cannot be used.
    """

    def __init__(self, views: Views, grid: Grid, progress: Callable[[int], None] = lambda _views: None) -> None:
        self.classes = len(views.classes)
        self.pixels = np.zeros(self.classes, np.int64)
        lengths, labels, counts = [np.zeros(1, np.int64)], list[np.ndarray](), list[np.ndarray]()
        for view in range(len(views)):
            table = pixels_by_patch(views.mask(view), grid.height, grid.width, self.classes)
            rows, columns = table.nonzero()
            lengths.append(np.bincount(rows, minlength=grid.patches))
            labels.append(columns.astype(np.int16))
            counts.append(table[rows, columns].astype(np.int32))
            self.pixels += table.sum(0)
            progress(1)
        self._starts = np.concatenate(lengths).cumsum()
        self._labels, self._counts = np.concatenate(labels), np.concatenate(counts)

    def labelled(self) -> np.ndarray:
        """The numbers of all patches with a pixel that counts, ascending."""
        return np.flatnonzero(np.diff(self._starts))

    def shares(self, numbers: np.ndarray) -> Tensor:
        """The share [n, C] float32 of each class among the pixels of patches [n] that count; they sum to 1."""
        lengths = self._starts[numbers + 1] - self._starts[numbers]
        rows = np.repeat(np.arange(len(numbers)), lengths)
        places = np.arange(len(rows)) + np.repeat(self._starts[numbers] - (lengths.cumsum() - lengths), lengths)
        table = np.zeros((len(numbers), self.classes), np.float32)
        table[rows, self._labels[places]] = self._counts[places]
        return torch.from_numpy(table / table.sum(1, keepdims=True))

    def majority(self, numbers: np.ndarray) -> np.ndarray:
        """The class [n] int64 that most pixels of each patch have; of equals the first."""
        return np.concatenate(
            [np.zeros(0, np.int64)]
            + [self.shares(part).argmax(1).numpy() for part in np.array_split(numbers, len(numbers) // 2**16 + 1)]
        )


def pixels_by_patch(mask: np.ndarray, height: int, width: int, classes: int) -> np.ndarray:
    """Pixels of every class in the patches of a mask.

    Args:
        mask: [H, W] classes; `IGNORED` does not count.
        height: of the grid in patches.
        width: likewise.
        classes: C.

    Returns:
        [height x width, C] int64.
    """
    rows, columns = (np.arange(side) * cells // side for side, cells in zip(mask.shape, (height, width), strict=True))
    patches, counted = rows[:, None] * width + columns, mask != IGNORED
    places = patches[counted] * classes + mask[counted]
    return np.bincount(places, minlength=height * width * classes).reshape(-1, classes)
