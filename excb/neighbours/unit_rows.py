"""Rows of unit length, normalised in float64 a span at a time."""

from typing import Protocol

import torch
from torch import Tensor

from excb.errors import UserError
from excb.neighbours import tiling
from excb.neighbours.backends import few_products


class Rows(Protocol):
    """Features [N, width] that are read span by span."""

    @property
    def width(self) -> int:
        """D."""

    def __len__(self) -> int:
        """N."""

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows [stop - start, D] of any real type."""


class UnitRows:
    """The rows of a matrix, normalised in float64 on request, never all of them at once.

    Rows are divided by their largest magnitude first, so no square overflows and rows that are positive multiples of
    one another become bit-identical. All steps are elementwise, so the bits depend neither on a row's index nor on the
    device.

    Args:
        source: [N, D] of any real type.
        name: of one row, for messages.
        device: of the unit rows.
        part: the rows to use, by default all.

    Attributes:
        width: D.
        scales: [N] float64, factors that turn raw rows into unit rows up to rounding.
        moderate: whether products of raw rows and scales stay far from overflow and underflow.
        plain: whether raw rows are float32, and products of theirs stay far from overflow and underflow in float32.

    Raises:
        UserError: a feature is NaN or infinite.
    """

    def __init__(self, source: Tensor | Rows, name: str, device: torch.device, part: slice | None = None) -> None:
        span = slice(0, len(source)) if part is None else part
        self._source, self.device, self._first = source, device, span.start
        self._length = span.stop - span.start
        self.width = source.shape[1] if isinstance(source, Tensor) else source.width
        self._peaks, self._inverse = torch.ones(2, self._length, 1, dtype=torch.float64, device=device)
        self.plain = True
        for rows in tiling.spans(self._length, self.width, tiling.CACHED, device):
            raw = self.raw_span(rows)
            self.plain &= raw.dtype == torch.float32
            values = raw.double()
            peak = values.abs().amax(1, keepdim=True)
            if not peak.isfinite().all():
                raise UserError(f"a {name} feature is NaN or infinite: check the encoder and the images it was given")
            self._peaks[rows] = torch.where(peak > 0, peak, 1.0)
            squares = (values / self._peaks[rows]).square_()
            while (width := squares.shape[1]) > 1:  # by halves, because the order of sum() depends on the device
                half = (width + 1) // 2
                squares[:, : width - half] += squares[:, half:]
                squares = squares[:, :half]
            self._inverse[rows] = 1 / squares.sqrt().clamp(min=1.0)  # at least 1 by the division, except in zero rows

        self.moderate = bool(((self._peaks > 2.0**-200) & (self._peaks < 2.0**200)).all())
        self.plain &= bool(((self._peaks > 2.0**-30) & (self._peaks < 2.0**60)).all())
        self.scales = (self._inverse / self._peaks)[:, 0]
        self._single_scales = self.scales.float()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, rows: slice) -> Tensor:
        return torch.div(self.raw_span(rows), self._peaks[rows]).mul_(self._inverse[rows])

    def approximate(self, rows: slice) -> Tensor:
        """Unit rows in float32, with a relative error of at most 6 x 2^-24 in every coordinate."""
        raw = self.raw_span(rows)
        kind = torch.promote_types(raw.dtype, torch.float32)
        return torch.div(raw, self._peaks[rows].to(kind)).mul_(self._inverse[rows].to(kind)).float()

    def products(self, queries: Tensor, rows: slice) -> Tensor:
        """The dot products [Q, n] of `plain` rows with unit queries [Q, D] in float32, with the error of FAISS's.

        Raw rows are multiplied, and their norms divide the results: there is no copy of the bank to write and to read.
        """
        raw, scales = self.raw_span(rows), self._single_scales[rows]
        if raw.device.type != "cpu":
            return (queries @ raw.T).mul_(scales)
        return few_products(raw, queries).T.mul_(scales)

    def pick(self, rows: Tensor) -> Tensor:
        """Unit rows [n, D] of the given numbers [n]."""
        return torch.div(self.raw(rows), self._peaks.index_select(0, rows)).mul_(self._inverse.index_select(0, rows))

    def raw(self, rows: Tensor) -> Tensor:
        """Raw rows [n, D] of the given numbers [n]."""
        if isinstance(self._source, Tensor):
            return self._source.detach().index_select(0, (rows + self._first).to(self._source.device)).to(self.device)
        return torch.cat([self._source.rows(row, row + 1) for row in (rows + self._first).tolist()]).to(self.device)

    def raw_span(self, rows: slice) -> Tensor:
        """Raw rows [n, D] that follow one another."""
        start, stop = rows.start + self._first, min(rows.stop, self._length) + self._first
        raw = self._source[start:stop] if isinstance(self._source, Tensor) else self._source.rows(start, stop)
        return raw.detach().to(self.device)
