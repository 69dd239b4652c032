"""A bank kept in bfloat16, less a centre: a few queries at once wait for memory, and this is half of it.

Letters: N bank rows, Q queries, D feature width, k neighbours.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from excb.neighbours import tiling
from excb.neighbours.backends import times
from excb.neighbours.centring import Centre
from excb.neighbours.proposals import Proposal, least_value, of_rank
from excb.neighbours.unit_rows import UnitRows

ROUNDING = 0.51 * torch.finfo(torch.bfloat16).eps  # relative, of a product that is returned in bfloat16
COLUMNS = 32  # rows are filled up to a multiple of it, which the processor reads in whole registers
MOST = 4096  # candidates of a query, or twice those wanted; where more are as near, float32 decides
MEASURED = 2**16  # rows that are multiplied to see whether a copy pays
SHARE = 0.9  # of the time with float32 rows that it may take: below, the memory is worth it


def copy_pays(bank: UnitRows, queries: int) -> bool:
    """Whether products with a copy of a bank in bfloat16 take less time than with its rows, measured before it is made.

    It depends on the processor: some multiply bfloat16 matrices quickly, but not with a few queries.
    """
    rows, width = min(len(bank), MEASURED), _filled_up(bank.width)
    low, asked = torch.ones(rows, width, dtype=torch.bfloat16), torch.ones(queries, width, dtype=torch.bfloat16)
    single = torch.ones(queries, bank.width)
    return times(lambda: _products(low, asked)) < SHARE * times(lambda: bank.products(single, slice(0, rows)))


class LowRows:
    """The rows of a bank on a CPU, rounded to bfloat16: 2 (D + 2) bytes each, and up to 62 to fill them up.

    Args:
        bank: N rows.
    """

    def __init__(self, bank: UnitRows) -> None:
        drawn = torch.linspace(0, len(bank) - 1, min(tiling.SAMPLE, len(bank)), dtype=torch.float64).long()
        self._centre = Centre(bank.pick(drawn).float(), torch.bfloat16)
        self._rows = torch.zeros(len(bank), _filled_up(bank.width), dtype=torch.bfloat16)
        self._length, self._lost, self._lost_offset = 0.0, 0.0, 0.0
        for tile in tiling.spans(len(bank), bank.width, tiling.BUDGET, self._rows.device):
            rows = self._centre.rows(bank.approximate(tile))
            self._rows[tile, : bank.width + 2] = rows.low
            self._length, self._lost = max(self._length, rows.length), max(self._lost, rows.lost)
            self._lost_offset = max(self._lost_offset, rows.lost_offset)

    def propose(self, wanted: int, queries: Tensor) -> Proposal:
        """Propose all rows that may be among the `wanted` nearest of unit queries [Q, D] in float64."""
        centred = self._centre.queries(queries)
        low = functional.pad(centred.low, (0, self._rows.shape[1] - centred.low.shape[1]))
        values = _products(self._rows, low).T.float()
        error = self._centre.error(centred, self._length, self._lost, self._lost_offset)
        # The last value that `Search` may ask for, and a little less.
        kth = of_rank(values, wanted).double()
        floor = least_value(kth, error, ROUNDING).float().nextafter(torch.tensor(-math.inf))
        found = [np.flatnonzero(some >= least) for some, least in zip(values.numpy(), floor.numpy(), strict=True)]
        most = max(MOST, 2 * wanted)
        for query, some in enumerate(found):
            if len(some) > most:
                found[query], floor[query] = some[:most], math.inf
        rows = torch.full((len(low), max(map(len, found))), -1)
        best = torch.full(rows.shape, -math.inf)
        for query, some in enumerate(found):
            rows[query, : len(some)] = torch.from_numpy(some)
            best[query, : len(some)] = values[query, torch.from_numpy(some)]
        return Proposal(rows, best, floor, error, ROUNDING)


def _filled_up(width: int) -> int:
    """Columns of a copy of rows of some width, with the two that the centre needs."""
    return -(-(width + 2) // COLUMNS) * COLUMNS


def _products(rows: Tensor, queries: Tensor) -> Tensor:
    """[n, Q] in bfloat16. torch's kernel for a matrix of one column takes half as long again as that for a vector."""
    return rows @ queries.T if len(queries) > 1 else (rows @ queries[0])[:, None]
