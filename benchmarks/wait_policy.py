"""A training step on the CPU with threads that spin while they wait, and with threads that sleep, beside a busy core.

Run: python benchmarks/wait_policy.py
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

from excb.pretrain.initialise import build_model
from excb.pretrain.optim import Schedules, build_optimizer
from excb.pretrain.recipes import quickstart
from excb.pretrain.step import Trainer

STEPS = 6


def seconds_per_step() -> float:
    """Mean seconds of the quickstart's step on random views."""
    import time

    recipe = quickstart().change(efficiency={"precision": "fp32"})
    model = build_model(recipe).to(memory_format=torch.channels_last).train()
    schedules = Schedules(recipe.optim, recipe.method, steps_per_epoch=STEPS)
    trainer = Trainer(model, build_optimizer(model.student, recipe.optim), schedules, recipe, torch.device("cpu"))
    views, batch = recipe.views, recipe.optim.batch
    sizes = ((views.global_views, views.global_size), (views.local_views, views.local_size))
    large, small = (torch.randn(count, batch, 3, size, size) for count, size in sizes)
    start = 0.0
    for step in range(STEPS + 1):
        if step == 1:  # the first one warms up
            start = time.perf_counter()
        output = model(large, small, step_key=step)
        trainer.optimizer.zero_grad()
        output.loss.backward()
        trainer.optimizer.step()
        model.update(output.clusters, 0.99)
    return (time.perf_counter() - start) / STEPS


def measure(policy: str, *, busy: bool) -> float:
    """The same in a process of its own with an OpenMP wait policy, optionally beside a process that burns a core."""
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        environment = {**os.environ, "OMP_WAIT_POLICY": policy, "PYTHONPATH": str(Path(__file__).parents[1])}
        command = [sys.executable, __file__, "child"]
        return float(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)
    finally:
        if burner is not None:
            burner.kill()
            burner.wait()


def main() -> None:
    """Print seconds per step and the ratio."""
    if sys.argv[1:] == ["child"]:
        print(seconds_per_step())
        return
    for busy in (False, True):
        spinning, sleeping = measure("ACTIVE", busy=busy), measure("PASSIVE", busy=busy)
        beside = "one core busy" if busy else "cores free"
        print(f"{beside}: spinning {spinning:.3f} s, sleeping {sleeping:.3f} s, ratio {spinning / sleeping:.2f}")


if __name__ == "__main__":
    main()
