"""One process and two on this machine, with gloo on CPUs: images/s of steps of the same batch, and bytes exchanged.

Run from the clone: python -m benchmarks.scaling [--batch 64] [--steps 5] [--recipe quickstart] [section.field=value]

Each process has one thread. Both numbers of processes take turns, and each one's fastest step counts: others may use
the machine, and two processes wait for whichever is slower. Bytes are those of the sums and gathers that torch's
profiler saw, sent in rings, beside those of `excb-pretrain plan`.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from excb.distributed.collectives import rank, world_size
from excb.distributed.launch import launch
from excb.distributed.parallel import joined
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan.flops import communication, count
from excb.pretrain.plan.speed import build_trainer, random_batch
from excb.pretrain.recipe import Recipe

TURNS = 2
FLOAT = 4  # bytes
EXCHANGES = ("gloo:all_reduce", "gloo:all_gather")  # two processes send each of them once


def child(recipe: Recipe, steps: int, out: Path) -> None:
    """Take steps as one of the processes; process 0 writes seconds of the fastest and bytes sent in one."""
    torch.set_num_threads(1)
    with joined("cpu") as device:
        trainer, batch = build_trainer(recipe, device), random_batch(recipe, recipe.optim.batch // world_size())
        seconds = []
        for step in range(steps + 2):  # the first one warms up; in the second one gradients are put into new buckets
            start = time.perf_counter()
            trainer.step(batch, step)
            seconds.append(time.perf_counter() - start)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            trainer.step(batch, steps + 2)
        if rank() == 0:
            sums = [event.input_shapes for event in profiler.events() if event.name in EXCHANGES]
            numbers = sum(torch.Size(shape).numel() for shapes in sums for shape in shapes)
            out.write_text(json.dumps({"seconds": min(seconds[2:]), "sent": FLOAT * numbers, "exchanges": len(sums)}))


def main() -> None:
    """Print images/s, their ratio, and bytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--batch", type=int, default=64, help="images per step, all processes together")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_intermixed_args()
    settings = [f"optim.batch={args.batch}", "efficiency.device=cpu", *args.overrides]
    recipe = apply(find_recipe(args.recipe), settings)
    if args.child is not None:
        child(recipe, args.steps, args.child)
        return
    measured: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        shared = ["--recipe", args.recipe, "--batch", str(args.batch), "--steps", str(args.steps)]
        for _ in range(TURNS):
            for number, figures in measured.items():
                code = launch("benchmarks.scaling", ["--child", str(out), *shared, *args.overrides], number)
                if code:
                    sys.exit(code)
                figures.append(json.loads(out.read_text()))
    one, two = (min(figure["seconds"] for figure in measured[number]) for number in measured)
    print(f"{args.recipe}, {args.batch} images per step, torch {torch.__version__}")
    speeds = f"1 process {args.batch / one:.1f} images/s, 2 processes {args.batch / two:.1f}"
    print(f"{speeds}: {one / two:.2f} times as fast (2 would be all)")
    planned = communication(recipe, count(recipe), 2)
    sent, exchanges = measured[2][0]["sent"], int(measured[2][0]["exchanges"])
    print(
        f"each of 2 sends {sent / 2**20:.3f} MiB per step in {exchanges} exchanges; planned {planned.total / 2**20:.3f}"
    )
    print("planned: " + ", ".join(f"{name} {value:,}" for name, value in asdict(planned).items()) + " (bytes; count)")


if __name__ == "__main__":
    main()
