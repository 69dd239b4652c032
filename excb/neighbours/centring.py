"""Unit rows less a centre in low precision: shorter rows lose less, and two more columns make up for the centre.

Letters: N bank rows, Q queries, D feature width. With q' = q - c and b' = b - c for a centre c, q b' = q' b' + c b'.
The product c b' is one number for each row of the bank: a column for it and one for its rounding, where all queries are
1. Products of centred rows are thus similarities less q c, a number of each query's own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from excb.neighbours.precision import SINGLE, float32_error, lowered


@dataclass(frozen=True)
class CentredQueries:
    """Queries less a centre."""

    low: Tensor  # [Q, D + 2] in low precision
    lengths: Tensor  # [Q] float64, at least the lengths of q'
    lost: Tensor  # [Q] float64, bounds the lengths of the errors of q'


@dataclass(frozen=True)
class CentredRows:
    """Some rows of a bank less a centre."""

    low: Tensor  # [n, D + 2] in low precision
    length: float  # at least the lengths of all b'
    lost: float  # bounds the lengths of the errors of all b'
    lost_offset: float  # bounds the errors of all c b'


class Centre:
    """The mean of some rows.

    Args:
        sample: [n, D] unit rows in float32.
        kind: float32 or bfloat16.
    """

    def __init__(self, sample: Tensor, kind: torch.dtype) -> None:
        self._point, self._kind = sample.mean(0), kind
        self._length = _longest(self._point[None])

    def queries(self, queries: Tensor) -> CentredQueries:
        """Queries [Q, D] of unit length in float64, less this centre."""
        single = queries.float().sub_(self._point)
        lengths = torch.linalg.vector_norm(single, dim=1).double().mul_(1.01)
        low, lost = lowered(single, self._kind)
        return CentredQueries(torch.cat([low, low.new_ones(len(low), 2)], 1), lengths, lost)

    def rows(self, single: Tensor) -> CentredRows:
        """Unit rows [n, D] in float32, less this centre. `single` is overwritten."""
        single.sub_(self._point)
        length, offsets = _longest(single), single @ self._point
        coarse = offsets.to(self._kind)
        rest = offsets - coarse
        fine = rest.to(self._kind)
        low, lost = lowered(single, self._kind)
        left_out = (rest - fine).abs().max().item()
        return CentredRows(torch.cat([low, coarse[:, None], fine[:, None]], 1), length, lost.max().item(), left_out)

    def error(self, queries: CentredQueries, length: float, lost: float, lost_offset: float) -> Tensor:
        """Bounds [Q] float64 on the errors of products with rows of such a length, before they are rounded.

        The lengths of rows and queries bound the terms of q' b'; those of rows and centre bound c b', which is summed
        once in float32 and added once. A last 1 covers the roundings of both differences.
        """
        D = len(self._point)
        terms = length * (queries.lengths + 2.1 * self._length + 1)
        return length * queries.lost + queries.lengths * lost + lost_offset + SINGLE + terms * float32_error(D + 2)


def _longest(rows: Tensor) -> float:
    return float(1.01 * torch.linalg.vector_norm(rows, dim=1).max())
