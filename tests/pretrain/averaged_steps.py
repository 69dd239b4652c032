"""Steps of one rank with each way of averaging gradients, as a program: gradients and weights as JSON from rank 0."""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from excb.distributed.collectives import rank, world_size
from excb.distributed.parallel import joined
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan.speed import build_trainer, random_batch

STEPS = 2
TINY = (
    "method.clusters=24",
    "method.hidden=16",
    "method.width=16",
    "views.global_size=32",
    "views.local_size=16",
    "optim.batch=8",
    "method.centroid_init=random",
    "efficiency.device=cpu",
)
RESNET = ("model.backbone=timm:resnet10t", 'model.options={"channels": [8, 8, 16, 16], "stem_width": 4}')
WAYS: dict[str, tuple[str, ...]] = {
    "none": (),
    "bf16": ("efficiency.compression=bf16",),
    "fp16": ("efficiency.compression=fp16",),
    "powersgd in small buckets": ("efficiency.compression=powersgd", "efficiency.bucket_mb=0.001"),
    "static, recomputed": ("efficiency.static_graph=true", "efficiency.checkpointing=true"),
}


def steps(overrides: tuple[str, ...]) -> list[list[float]]:
    """The student's gradient after each step, one vector each."""
    recipe = apply(find_recipe("conv4_tiny"), [*TINY, *RESNET, *overrides])
    torch.manual_seed(3)
    trainer = build_trainer(recipe, torch.device("cpu"))
    batch = random_batch(recipe.change(run={"seed": rank()}), recipe.optim.batch // world_size())
    found = []
    for number in range(STEPS):
        trainer.step(batch, number)
        parameters = [one for one in trainer.model.student.parameters() if one.grad is not None]
        found.append(torch.cat([one.grad.flatten() for one in parameters if one.grad is not None]).tolist())
    trainer.synchronize()
    return found


def main(out: Path) -> None:
    """All ways, written by rank 0."""
    with joined("cpu"):
        found: dict[str, Any] = {name: steps(overrides) for name, overrides in WAYS.items()}
        if rank() == 0:
            out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
