"""Variants of the loss on a CPU: one pass over the centroids, by tile size, by way of summing, by attention.

Run: python benchmarks/loss_forms.py [--rows 512] [--clusters 65536] [--width 256] [--turns 3]

The pass is the student's: logsumexp of R rows' scores and the softmax average of the centroids: the loss and its
gradient in the rows. "matrix products" are the two necessary ones alone. "attention" is PyTorch's flash attention for
CPUs, with the operator that also returns the logsumexp. "whole" holds the rows x clusters matrix. Ways take turns.
Times are processor time of one thread in each way's fastest turn, relative to the way that is used. Errors are relative
to float64.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from excb.objective import chunked as objective_chunked
from excb.objective.scores import Scores

TAU_S = 0.1
Answer = tuple[Tensor, Tensor]  # averages [R, D] and logsumexps [R]


@contextmanager
def tiles(rows: int, clusters: int, part: int) -> Iterator[None]:
    """Other tiles for a while."""
    names = ("_ROWS", "_CLUSTERS", "_PART")
    before = [getattr(objective_chunked, name) for name in names]
    try:
        for name, value in zip(names, (rows, clusters, part), strict=True):
            setattr(objective_chunked, name, value)
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(objective_chunked, name, value)


def main() -> None:
    """Print a table of ratios and errors."""
    parser = argparse.ArgumentParser(description="forms of the loss on a CPU")
    for name, default in (("rows", 512), ("clusters", 65_536), ("width", 256), ("turns", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, c = (F.normalize(torch.randn(count, options.width), dim=1) for count in (options.rows, options.clusters))
    scores, products = Scores(x, c, TAU_S), torch.empty(options.rows, options.clusters)

    def chunked(rows: int = 256, clusters: int = 1024, part: int = 64) -> Answer:
        with tiles(rows, clusters, part):
            average = objective_chunked.average(scores, c, winners=False)
        return average.mean, average.peak / TAU_S + average.total.log()

    def attention() -> Answer:
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        mean, logsumexp = operator(x[None, None], c[None, None], c[None, None], 0.0, False, scale=1 / TAU_S)
        return mean[0, 0], logsumexp.flatten()

    def full() -> Answer:
        z = x @ c.T / TAU_S
        return z.softmax(1) @ c, z.logsumexp(1)

    def matrix_products() -> None:
        torch.mm(torch.mm(x, c.T, out=products), c)

    ways: dict[str, Callable[[], Answer | None]] = {
        "used: tiles of 256 x 1,024, sums of 64": chunked,
        "sums of 32": lambda: chunked(part=32),
        "sums of 256, the whole width": lambda: chunked(part=256),
        "tiles of 64 x 1,024": lambda: chunked(rows=64),
        "tiles of 256 x 256": lambda: chunked(clusters=256),
        "tiles of 512 x 4,096": lambda: chunked(512, 4096),
        "tiles of 512 x 16,384": lambda: chunked(512, 16_384),
        "attention": attention,
        "whole": full,
        "matrix products": matrix_products,
    }
    exact = x.double() @ c.double().T / TAU_S
    expected = exact.softmax(1) @ c.double(), exact.logsumexp(1)
    del exact
    answers = {way: work() for way, work in ways.items()}
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(options.turns):
        for way, work in ways.items():
            start = time.process_time()
            work()
            least[way] = min(least[way], time.process_time() - start)
    print(f"torch {torch.__version__}, one thread; {options.rows} rows, K = {options.clusters:,}, D = {options.width}")
    base = next(iter(least.values()))
    for way, answer in answers.items():
        errors = ""
        if answer is not None:
            errors = "".join(
                f"{((a - b).norm() / b.norm()).item():10.1e}" for a, b in zip(answer, expected, strict=True)
            )
        print(f"{way:40}{least[way]:8.3f} s{least[way] / base:7.2f}{errors}")


if __name__ == "__main__":
    main()
