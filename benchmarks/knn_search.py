"""Speed of exact nearest neighbours against full rows of similarities with topk, and memory of a bank.

Run: python benchmarks/knn_search.py [--bank 200000] [--queries 4000] [--width 384] [--k 200] [--threads 1] [--turns 2]
     python benchmarks/knn_search.py --memory --bank 1000000
     python benchmarks/knn_search.py --check --bank 20000
     python benchmarks/knn_search.py --vote --bank 50000 --queries 3000 --width 500 --turns 6
     python benchmarks/knn_search.py --device cuda --bank 1281167 --queries 10000 [--json FILE]

Features are random unit rows in float32. "naive" multiplies 256 queries at a time with the whole bank and keeps the
best of each row. All ways take turns; processor time and wall time are each way's least, as others may use the machine.
--memory searches once, with torch, and prints the most memory that the process ever held, its libraries included.
On a GPU features lie there, neighbours end on the CPU, and only the wall time says something.
--vote compares whole classifications: our search and vote with FAISS's flat index and a vote as DINO's code has it.
--check compares all neighbours and votes with scikit-learn's brute force in float64.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excb.distributed.machine import choose_device
from excb.errors import UserError
from excb.files.atomic import write_text
from excb.neighbours.backends import available_backend, import_faiss
from excb.neighbours.knn import vote
from excb.neighbours.memory import search_memory
from excb.neighbours.nearest import Neighbours, nearest

CLASSES, TEMPERATURE = 100, 0.07


def unit_rows(rows: int, width: int, seed: int) -> Tensor:
    """Random rows of length 1, normalised in place: a second bank may not fit."""
    features = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    for some in features.split(8192):
        some.div_(some.norm(dim=1, keepdim=True))
    return features


def naive(bank: Tensor, queries: Tensor, k: int) -> Neighbours:
    """The usual way."""
    parts = [(some @ bank.T).topk(k) for some in queries.split(256)]
    indices, values = torch.cat([part.indices for part in parts]), torch.cat([part.values for part in parts])
    return Neighbours(indices.cpu(), values.cpu())


def compare(bank: Tensor, queries: Tensor, k: int, turns: int) -> dict[str, Any]:
    """Print seconds and ratios, and whether the answers agree; the same figures by way."""
    ways: dict[str, Callable[[], Neighbours]] = {
        "naive": lambda: naive(bank, queries, k),
        "torch": lambda: nearest(bank, queries, k, backend="torch"),
    }
    try:
        if not bank.is_cuda:
            available_backend("faiss")
            ways["FAISS"] = lambda: nearest(bank, queries, k, backend="faiss")
    except UserError as error:
        print(error)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    answers = {}
    for _ in range(turns):
        for name, search in ways.items():
            processor, wall = time.process_time(), time.perf_counter()
            answers[name] = search()
            taken[name].append((time.process_time() - processor, time.perf_counter() - wall))
    least = {name: tuple(map(min, zip(*times, strict=True))) for name, times in taken.items()}
    print(f"{'':8}{'processor s':>12}{'naive / it':>12}{'wall s':>12}{'naive / it':>12}")
    for name, (processor, wall) in least.items():
        ratios = least["naive"][0] / processor, least["naive"][1] / wall
        print(f"{name:8}{processor:12.2f}{ratios[0]:12.2f}{wall:12.2f}{ratios[1]:12.2f}")
    figures: dict[str, Any] = {}
    for name, answer in answers.items():
        apart = (answer.similarities.double() - answers["torch"].similarities).abs().max().item()
        same = (answer.indices == answers["torch"].indices).double().mean().item()
        print(f"{name} against torch: similarities {apart:.1g} apart, indices {100 * same:.4f} % equal")
        processor, wall = least[name]
        figures[name] = {"processor": processor, "wall": wall, "apart": apart, "same": same}
    return figures


def compare_votes(bank: Tensor, queries: Tensor, k: int, turns: int) -> None:
    """Print processor seconds of both ways, the least and the most, and how often they predict the same class."""
    labels = torch.randint(CLASSES, (len(bank),), generator=torch.Generator().manual_seed(2))
    ways = {"FAISS, flat, and a vote": flat_and_vote, "ours": ours}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        predicted = []
        for name, way in ways.items():
            start = time.process_time()
            predicted.append(way(bank, queries, labels, k))
            taken[name].append(time.process_time() - start)
    for name, seconds in taken.items():
        print(f"{name}: {min(seconds):.2f} to {max(seconds):.2f} s, median {statistics.median(seconds):.2f} s")
    ratios = sorted(other / own for other, own in zip(*taken.values(), strict=True))
    print(f"FAISS / ours: {ratios[0]:.2f} to {ratios[-1]:.2f}, median {statistics.median(ratios):.2f}")
    print(f"the same class: {100 * (predicted[0] == predicted[1]).double().mean():.2f} % of {len(queries):,} queries")


def flat_and_vote(bank: Tensor, queries: Tensor, labels: Tensor, k: int) -> Tensor:
    """Predicted classes [Q], from rows of any length."""
    rows, asked = torch.nn.functional.normalize(bank), torch.nn.functional.normalize(queries)
    index = import_faiss().IndexFlatIP(bank.shape[1])
    index.add(rows.numpy())
    similarities, places = map(torch.from_numpy, index.search(asked.numpy(), k))
    scores = torch.zeros(len(queries), CLASSES)
    scores.scatter_add_(1, labels[places], (similarities / TEMPERATURE).exp())
    return scores.argmax(1)


def ours(bank: Tensor, queries: Tensor, labels: Tensor, k: int) -> Tensor:
    """The same by the package."""
    votes = vote(nearest(bank, queries, k), labels, ks=[k], temperatures=[TEMPERATURE], classes=CLASSES)
    return votes[k, TEMPERATURE].top1


def memory(bank: Tensor, queries: Tensor, k: int) -> None:
    """Print the memory that was planned and the most that was held."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    start = time.perf_counter()
    nearest(bank, queries, k, backend="torch")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{time.perf_counter() - start:.1f} s; at most {peak / 1e9:.2f} GB, {before / 1e9:.2f} GB before the search")


def check(bank: Tensor, queries: Tensor, k: int) -> None:
    """Print where neighbours and predictions differ from scikit-learn's, with every vote that does."""
    from sklearn.neighbors import NearestNeighbors

    labels = torch.randint(CLASSES, (len(bank),), generator=torch.Generator().manual_seed(2))
    neighbours = nearest(bank, queries, k)
    brute = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(bank.double().numpy())
    distances, indices = brute.kneighbors(queries.double().numpy())
    print(f"neighbours: {int((neighbours.indices.numpy() != indices).sum())} of {indices.size} differ")
    ks = sorted({min(k, count) for count in (10, 20, 100, 200)})
    for (count, _), voted in vote(neighbours, labels, ks=ks, temperatures=[TEMPERATURE], classes=CLASSES).items():
        scores = np.zeros((len(queries), CLASSES))
        weights = np.exp((1 - distances[:, :count]) / TEMPERATURE)
        np.add.at(scores, (np.arange(len(queries))[:, None], labels.numpy()[indices[:, :count]]), weights)
        differ = np.flatnonzero(scores.argmax(1) != voted.top1.numpy())
        two = np.sort(scores, 1)[:, -2:]
        ties = int((two[:, 1] - two[:, 0] < 1e-6 * two[:, 1]).sum())
        print(f"k = {count}: {len(differ)} of {len(queries)} predictions differ, {ties} votes tie")
        for query in differ:
            print(f"  query {query}: two highest scores {two[query, 1]:.9g} and {two[query, 0]:.9g}")


def main() -> None:
    """Parse arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("bank", 200_000), ("queries", 4000), ("width", 384), ("k", 200), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--vote", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(search_memory(options.bank, options.width, options.queries, options.k).text)
    bank, queries = unit_rows(options.bank, options.width, 0), unit_rows(options.queries, options.width, 1)
    device = choose_device(options.device)
    bank, queries = bank.to(device), queries.to(device)
    if options.memory:
        memory(bank, queries, options.k)
    elif options.check:
        check(bank, queries, options.k)
    elif options.vote:
        compare_votes(bank, queries, options.k, options.turns)
    else:
        figures = compare(bank, queries, options.k, options.turns)
        if options.json:
            write_text(json.dumps(figures, indent=2) + "\n", options.json)


if __name__ == "__main__":
    main()
