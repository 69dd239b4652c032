"""Cost of the loss, forward and backward: whole matrices of rows x clusters against centroids streamed in tiles.

Run: python benchmarks/loss_head.py [--batch 64] [--clusters 65536] [--width 256] [--threads 1] [--turns 3]
     python benchmarks/loss_head.py --device cuda --batch 256 [--backend auto] [--json FILE]

The input is what the heads return: unit rows of 2 global and 6 local views from projector and predictor, unit rows of
the teacher, unit centroids. "published" is the plain form of the equations as published code writes them: B on the
teacher's similarities, softmax, and for each of the 30 pairs of views -p log_softmax(z), eager, on a GPU under bfloat16
autocast. "hoisted" is a faster form of it: one log_softmax for each view instead of for each pair. "ours" is
`excb.objective.loss`, in float32 on a CPU, with bfloat16 rows on a GPU.

All ways take turns in one process, and each one's fastest turn counts. Others may use the machine: on a CPU it is
processor time, but for "wall". Memory is the most that a step takes beyond the input, gradients included: on a GPU what
torch allocates, on a CPU (under Linux) by how much a process of its own grows. On a GPU the products that the equations
need are also given as a share of the rate of a product of 8192 x 8192 matrices in bfloat16; what is computed again does
not count.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from excb.files.atomic import write_text
from excb.method import balancing, pair_weights
from excb.objective.loss import assign, cross_entropy

GLOBALS, VIEWS, TAU_T, TAU_S = 2, 8, 0.04, 0.1


@dataclass(frozen=True)
class Batch:
    """The outputs of the heads."""

    h: Tensor  # [V, B, D] of the projector
    g: Tensor  # [V, B, D] of the predictor
    centroids: Tensor  # [K, D]
    queries: Tensor  # [G, B, D] of the teacher
    teacher: Tensor  # [K, D] centroids of the teacher
    sizes: Tensor  # [K]

    def gradients(self) -> list[Tensor]:
        """Take the gradients of everything that learns, and clear them."""
        leaves = (self.h, self.g, self.centroids)
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        for leaf in leaves:
            leaf.grad = None
        return gradients


def batch_of(images: int, clusters: int, width: int, device: str) -> Batch:
    """Views near one another, clusters whose sizes differ by a third or so."""

    def near(rows: Tensor) -> Tensor:
        return F.normalize(rows + F.normalize(torch.randn(rows.shape), dim=-1), dim=-1)

    torch.manual_seed(0)
    centroids = F.normalize(torch.randn(clusters, width), dim=1)
    seeds = centroids[torch.randint(clusters, (images,))]
    h, queries = near(seeds.expand(VIEWS, images, width)), near(seeds.expand(GLOBALS, images, width))
    sizes = torch.randn(clusters).mul(0.3).exp()
    tensors = h, near(h), centroids, queries, near(centroids), sizes / sizes.sum()
    batch = Batch(*(tensor.to(device) for tensor in tensors))
    for leaf in (batch.h, batch.g, batch.centroids):
        leaf.requires_grad_()
    return batch


def plain(batch: Batch, *, hoisted: bool) -> Tensor:
    """The equations with whole matrices, pair by pair."""
    relative = batch.sizes * len(batch.sizes)
    fixed = batch.centroids.detach()
    with torch.no_grad():
        z_t = batch.queries @ batch.teacher.T
        z_t = 1 - (1 - z_t) * relative.clamp(max=1)
        z_t = (1 + z_t) * (1 / relative).clamp(max=1) - 1
        p_t = torch.softmax(z_t / TAU_T, dim=-1)
    z_h = torch.cat([batch.h[:GLOBALS] @ batch.centroids.T, batch.h[GLOBALS:] @ fixed.T]) / TAU_S
    z_g = batch.g @ fixed.T / TAU_S
    if hoisted:
        z_h, z_g = F.log_softmax(z_h, dim=-1), F.log_softmax(z_g, dim=-1)

    def entropy(p: Tensor, z: Tensor) -> Tensor:
        return (-p * (z if hoisted else F.log_softmax(z, dim=-1))).sum(dim=-1).mean()

    of_h = [entropy(p_t[t], z_h[v]) for t in range(GLOBALS) for v in range(VIEWS) if t != v]
    of_g = [entropy(p_t[t], z_g[v]) for t in range(GLOBALS) for v in range(VIEWS)]
    return torch.stack(of_h).mean() / 2 + torch.stack(of_g).mean() / 2


def ours(batch: Batch, backend: str) -> Tensor:
    """The same without a matrix of rows x clusters, as `excb.method` calls it."""
    kind = torch.bfloat16 if batch.h.is_cuda else torch.float32
    h, g, centroids, queries, teacher = (
        rows.to(kind) for rows in (batch.h, batch.g, batch.centroids, batch.queries.flatten(0, 1), batch.teacher)
    )
    fixed = centroids.detach()
    weights_h, weights_g = (half.to(batch.sizes) for half in pair_weights(GLOBALS, VIEWS - GLOBALS))
    scale, offset = balancing(batch.sizes)
    assignment = assign(queries, teacher, scale, offset, fixed, temperature=TAU_T, backend=backend)
    loss = cross_entropy(h[:GLOBALS], centroids, assignment, weights_h[:, :GLOBALS], temperature=TAU_S)
    rest, weights = torch.cat([h[GLOBALS:], g]), torch.cat([weights_h[:, GLOBALS:], weights_g], 1)
    return loss + cross_entropy(rest, fixed, assignment, weights, temperature=TAU_S)


def seconds(work: Callable[[], object], device: str) -> tuple[float, float]:
    """How long something takes: on the processor (on a GPU, on the wall), and on the wall."""
    if device == "cuda":
        torch.cuda.synchronize()
    start, processor = time.perf_counter(), time.process_time()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    wall = time.perf_counter() - start
    return (wall if device == "cuda" else time.process_time() - processor), wall


def fastest(
    step: Callable[[str], object], ways: Iterable[str], turns: int, device: str
) -> tuple[dict[str, float], dict[str, float]]:
    """The least of each of the two times of `seconds`, by way; ways take turns."""
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(turns):
        for way, times in taken.items():
            times.append(seconds(lambda way=way: step(way), device))  # type: ignore[misc]
    processor, wall = ({way: min(time[i] for time in times) for way, times in taken.items()} for i in range(2))
    return processor, wall


def most_memory(work: Callable[[], object], device: str) -> int:
    """By how many bytes memory grows at most."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    """A figure of this process in bytes, from Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def grown(way: str) -> int:
    """`most_memory` of one step in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--memory-of", way]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def distances(ours: list[Tensor], theirs: list[Tensor]) -> dict[str, float]:
    """How far each gradient is from the other way's, relative to its length."""
    pairs = zip(("h", "g", "centroids"), ours, theirs, strict=True)
    return {name: float((one - other).norm() / other.norm()) for name, one, other in pairs}


def matrix_peak() -> float:
    """Operations per second of a large product in bfloat16."""
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / min(seconds(lambda: left @ right, "cuda")[0] for _ in range(20))


def main() -> None:
    """Print a table of seconds, bytes and ratios."""
    parser = argparse.ArgumentParser(description="time and memory of the loss")
    for name, default in (("batch", 64), ("clusters", 65_536), ("width", 256), ("threads", 1), ("turns", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backend", default="auto", help="of excb.objective.loss: auto, triton, chunked or plain")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    parser.add_argument("--memory-of", help="measure this way's memory and nothing else")
    options = parser.parse_args()
    device = options.device
    torch.set_num_threads(options.threads)
    batch = batch_of(options.batch, options.clusters, options.width, device)
    ways: dict[str, Callable[[], Tensor]] = {
        "published": lambda: plain(batch, hoisted=False),
        "hoisted": lambda: plain(batch, hoisted=True),
        "ours": lambda: ours(batch, options.backend),
    }

    def step(way: str) -> Tensor:
        batch.gradients()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda" and way != "ours"):
            loss = ways[way]()
        loss.backward()
        return loss.detach()

    if options.memory_of:
        print(most_memory(lambda: step(options.memory_of), device))
        return
    where = f"{options.threads} thread(s)" if device == "cpu" else torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {where}; {options.batch} images, 2 + 6 views, K = {options.clusters:,}")
    losses, gradients = {}, {}
    for way in ways:
        losses[way], gradients[way] = step(way).double(), batch.gradients()
    taken, wall = fastest(step, ways, options.turns, device)
    held = {way: grown(way) for way in ways}
    print(f"{'':10}{'seconds':>10}{'/ ours':>8}{'wall':>10}{'/ ours':>8}{'MB':>8}{'/ ours':>8}{'loss':>12}")
    for way in ways:
        measures = (taken, "10.4f", 1.0), (wall, "10.4f", 1.0), (held, "8.0f", 1e-6)
        figures = [f"{of[way] * unit:{layout}}{of[way] / of['ours']:8.1f}" for of, layout, unit in measures]
        print(f"{way:10}{''.join(figures)}{losses[way]:12.7f}")
    ways_of = {way: {"seconds": taken[way], "wall": wall[way], "bytes": held[way]} for way in ways}
    record: dict[str, Any] = {"ways": ways_of, "losses": {way: float(loss) for way, loss in losses.items()}}
    record["gradients_apart"] = distances(gradients["ours"], gradients["hoisted"])
    for name, apart in record["gradients_apart"].items():
        print(f"gradient of {name}: {apart:.1e} from hoisted")
    if device == "cuda":
        rows = options.batch * (2 * GLOBALS + 4 * VIEWS)  # z_t, dL/dC; z_h, z_g and dL/d of both
        rate = 2 * rows * options.clusters * options.width / taken["ours"]
        record |= {"flops_per_second": rate, "of_peak": (share := rate / matrix_peak())}
        print(f"ours: {rate / 1e12:.0f} TFLOP/s, {100 * share:.0f} % of the matrix peak")
    if options.json:
        write_text(json.dumps(record, indent=2) + "\n", options.json)


if __name__ == "__main__":
    main()
