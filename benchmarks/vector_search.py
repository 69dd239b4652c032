"""Milliseconds of a search among embeddings, exact and through a graph, beside FAISS's flat index and numpy.

Run: python -m benchmarks.vector_search [--rows 100000 1000000] [--width 384] [--embeddings FILE.npz] [--turns 10]
Without --embeddings, rows are random: 100 a cluster, as far from its centre as centres are from each other. One thread.
All ways take turns; processor time is each one's least, since others may use the machine.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
import torch

import excb
from excb.neighbours.approximate import ApproximateIndex
from excb.neighbours.nearest import Index

K, A_CLUSTER = 12, 100


def drawn(rows: int, width: int) -> torch.Tensor:
    """Random rows in clusters, float32."""
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(max(1, rows // A_CLUSTER), width, generator=random)
    found = torch.randn(rows, width, generator=random)
    for start in range(0, rows, 8192):
        some = found[start : start + 8192]
        some += centres[torch.randint(len(centres), (len(some),), generator=random)]
    return found


def measured(bank: torch.Tensor, turns: int, *, graph: bool) -> None:
    """Print a line for each way to search."""
    rows, width = bank.shape
    unit = torch.nn.functional.normalize(bank).numpy()
    flat: Any = faiss.IndexFlatIP(width)
    flat.add(unit)
    exact = Index(bank)
    queries = {count: bank[:: max(1, rows // count)][:count] + 0.01 for count in (1, 100)}

    def numpy_search(some: torch.Tensor) -> np.ndarray:
        values = some.numpy() @ unit.T
        return np.argpartition(-values, K, axis=1)[:, :K]

    ways: dict[str, Callable[[torch.Tensor], Any]] = {
        "FAISS, flat": lambda some: flat.search(some.numpy(), K),
        "numpy": numpy_search,
        "excb, exact": lambda some: exact.nearest(some, K),
    }
    print(f"{rows:,} x {width}")
    if graph:
        began = time.process_time()
        index = ApproximateIndex(bank)
        seconds = time.process_time() - began
        print(f"  the graph: built in {seconds:.0f} s, finds {100 * index.recall():.1f} % of the ten nearest")
        ways["excb, graph"] = lambda some: index.nearest(some, K)
    least = {(name, count): float("inf") for name in ways for count in queries}
    for _ in range(turns):
        for name, search in ways.items():
            for count, some in queries.items():
                began = time.process_time()
                search(some)
                least[name, count] = min(least[name, count], 1000 * (time.process_time() - began) / count)
    for name in ways:
        print(f"  {name:12s} " + ", ".join(f"{least[name, count]:.2f} ms a query of {count}" for count in queries))


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--embeddings", help="of `excb-eval embed`, instead of random rows")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--no-graph", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    if args.embeddings:
        measured(torch.from_numpy(excb.Embeddings.load(args.embeddings).vectors), args.turns, graph=not args.no_graph)
        return
    for rows in args.rows:
        measured(drawn(rows, args.width), args.turns, graph=not args.no_graph)


if __name__ == "__main__":
    main()
