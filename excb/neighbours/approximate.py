"""An approximate index for many searches of many rows: FAISS's HNSW graph, with the recall that it has on its own rows.

Malkov and Yashunin, "Efficient and robust approximate nearest neighbor search using hierarchical navigable small world
graphs", TPAMI 2020.
"""

import torch
from torch import Tensor

from excb.errors import require
from excb.neighbours import tiling
from excb.neighbours.backends import available_backend, import_faiss
from excb.neighbours.nearest import Neighbours, check_shapes, nearest
from excb.neighbours.unit_rows import Rows, UnitRows

LINKS = 32  # of a row, in each layer of the graph
BUILDING = 100  # candidates while the graph is built (efConstruction)
BREADTH = 96  # candidates of a search, or twice its k if that is more (efSearch)
SAMPLE = 200  # rows that recall is measured with


class ApproximateIndex:
    """A bank with a graph: a search visits a small part of the rows and may miss some of the nearest.

    Cosines of the rows that it finds are computed in float64. The graph holds a copy of the rows in float32 and some
    270 bytes of links a row.

    Args:
        bank: [N, D] of any real type.
        breadth: candidates of a search: more of them find more of the nearest, in more time.

    Raises:
        UserError: a feature is NaN or infinite, or FAISS is missing.
    """

    def __init__(self, bank: Tensor | Rows, *, breadth: int = BREADTH) -> None:
        require(breadth >= 1, f"breadth is {breadth}: a search needs one candidate at least")
        available_backend("faiss")
        faiss = import_faiss()
        self._bank, self._breadth = bank, breadth
        self._rows = UnitRows(bank, "bank", torch.device("cpu"))
        self._graph = faiss.IndexHNSWFlat(self._rows.width, LINKS, faiss.METRIC_INNER_PRODUCT)
        self._graph.hnsw.efConstruction = BUILDING
        for span in tiling.spans(len(self._rows), self._rows.width, tiling.CACHED, torch.device("cpu")):
            self._graph.add(self._rows.approximate(span).numpy())

    def __len__(self) -> int:
        """N."""
        return len(self._rows)

    def nearest(self, queries: Tensor, k: int) -> Neighbours:
        """Rows near to queries [Q, D], k for each, sorted by (-similarity, index).

        Raises:
            UserError: shapes differ, k is out of range, or a feature is NaN or infinite.
        """
        check_shapes(self._rows, queries, k, exclude_self=False)
        units = UnitRows(queries, "query", torch.device("cpu"))
        wanted = min(len(self), max(self._breadth, 2 * k))
        self._graph.hnsw.efSearch = wanted
        _, found = self._graph.search(units.approximate(slice(0, len(units))).numpy(), wanted)
        indices = torch.empty(len(units), k, dtype=torch.int64)
        similarities = torch.empty(len(units), k, dtype=torch.float64)
        for query, candidates in enumerate(torch.from_numpy(found)):
            rows = candidates[candidates >= 0].sort().values
            if len(rows) < k:  # a graph of many equal rows may lead to few of them
                exact = nearest(self._bank, queries[query : query + 1], k)
                indices[query], similarities[query] = exact.indices[0], exact.similarities[0]
                continue
            cosines = self._rows.pick(rows) @ units[slice(query, query + 1)][0]
            best = cosines.sort(descending=True, stable=True).indices[:k]
            indices[query], similarities[query] = rows[best], cosines[best]
        return Neighbours(indices, similarities)

    def recall(self, k: int = 10) -> float:
        """The share of the k nearest rows that searches find, of up to `SAMPLE` of the bank's own rows; 0 to 1."""
        count, k = min(SAMPLE, len(self)), min(k, len(self))
        places = torch.linspace(0, len(self) - 1, count).long()
        queries = self._rows.pick(places)
        there, found = nearest(self._bank, queries, k), self.nearest(queries, k)
        hits = (found.similarities >= there.similarities[:, -1:] - 1e-9).sum()  # of equal rows any counts
        return float(hits) / (count * k)
