"""A bank's unit rows in float16, less a centre: a few queries wait for memory, and these are half of it.

Letters: N bank rows, Q queries, D feature width.
"""

import torch
from torch import Tensor

from excb.neighbours import tiling
from excb.neighbours.backends import import_faiss
from excb.neighbours.precision import SINGLE, float32_error
from excb.neighbours.proposals import Proposal, best_proposal
from excb.neighbours.unit_rows import UnitRows

MOST_QUERIES = 4  # FAISS scans the rows once for each query; more are faster as one product of matrices
CENTRED = 8192  # rows whose mean is the centre
SLACK = 256  # candidates beyond those wanted, for rows that are too near to each other for float16


class HalfRows:
    """The rows of a bank on a CPU in FAISS's index of float16: 2 D bytes each.

    Rows less their mean are shorter, and so lose less by rounding. Products of theirs with a query are similarities
    less the query's product with the mean, a number of each query's own, which does not change the order.

    Args:
        bank: N rows.

    Raises:
        ImportError: FAISS is not installed.
    """

    def __init__(self, bank: UnitRows) -> None:
        faiss = import_faiss()
        self._index = faiss.IndexScalarQuantizer(bank.width, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        drawn = torch.linspace(0, len(bank) - 1, min(CENTRED, len(bank)), dtype=torch.float64).long()
        centre = bank.pick(drawn).float().mean(0)
        length, lost = 0.0, 0.0
        for tile in tiling.spans(len(bank), bank.width, tiling.BUDGET, centre.device):
            rows = bank.approximate(tile).sub_(centre)
            self._index.add(rows.numpy())
            kept = torch.from_numpy(self._index.reconstruct_n(tile.start, len(rows)))
            length = max(length, float(torch.linalg.vector_norm(kept, dim=1).max()))
            lost = max(lost, float(torch.linalg.vector_norm(rows.sub_(kept), dim=1).max()))
        # By Cauchy-Schwarz: what float16 lost of a row; the errors of unit rows in float32, of rows less the centre and
        # of queries in float32 (2^-24 times a length of at most 2, each); the sum's.
        self._error = 1.01 * lost + 2 * SINGLE + 1.01 * length * float32_error(bank.width)

    def propose(self, wanted: int, queries: Tensor) -> Proposal:
        """Propose the `wanted` + SLACK best for unit queries [Q, D] in float64."""
        values, rows = self._index.search(queries.float().numpy(), min(wanted + SLACK, self._index.ntotal))
        return best_proposal(torch.from_numpy(values), torch.from_numpy(rows), self._error)
