"""PCA whitening learned on other images, and rows that it is applied to when they are read.

Letters: M images that it is learned on, D feature width, W whitened width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from excb.console import plural
from excb.errors import require
from excb.neighbours.precision import dots, split
from excb.neighbours.unit_rows import Rows, UnitRows

_CPU = torch.device("cpu")
_AT_ONCE = 4096  # rows that are whitened together
_FLOOR = 1e-5  # of the largest variance, below which one is not divided by


@dataclass(frozen=True)
class DescriptorWhitening:
    """x -> (x - mean) projected on the directions of largest variance, each divided by its standard deviation."""

    axes: Tensor  # [W, D] float64, of unit length
    offset: Tensor  # [W], the mean's projection
    scale: Tensor  # [W]

    @classmethod
    def learned(cls, rows: Tensor, width: int | None) -> "DescriptorWhitening":
        """The whitening of features [M, D], each of which is normalised first.

        Args:
            rows: features.
            width: W; None is as many as there can be.

        Raises:
            UserError: there are too few images, or a feature is NaN or infinite.
        """
        most = min(rows.shape[1], len(rows) - 1)
        require(
            1 <= (width or 1) <= most,
            f"{plural(len(rows), 'image')} of {plural(rows.shape[1], 'feature')} whiten to 1 to {most} dimensions: "
            "name more images for --whiten, or another --whiten-width",
        )
        units = UnitRows(rows, "whitening", _CPU)
        values = units[slice(0, len(units))]
        mean = values.mean(0)
        variances, axes = torch.linalg.eigh(torch.cov(values.T, correction=0))
        variances, axes = variances.flip(0)[: width or most], axes.flip(1)[:, : width or most].T.contiguous()
        scale = variances.clamp(min=_FLOOR * float(variances[0])).rsqrt()
        return cls(axes, axes @ mean, scale)


class WhitenedRows:
    """Rows [N, W], whitened as they are read.

    Products are those of `excb.neighbours.precision.dots`: a row has the same bits in whatever span it is read.
    """

    def __init__(self, source: Tensor | Rows, whitening: DescriptorWhitening) -> None:
        self._units = UnitRows(source, "gallery", _CPU)
        self._whitening, self._axes = whitening, split(whitening.axes.clone())
        self.width = len(whitening.axes)

    def __len__(self) -> int:
        return len(self._units)

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows [stop - start, W] float64."""
        parts = [slice(first, min(first + _AT_ONCE, stop)) for first in range(start, stop, _AT_ONCE)]
        products = torch.cat([dots(split(self._units[part]), self._axes) for part in parts])
        return (products - self._whitening.offset) * self._whitening.scale
