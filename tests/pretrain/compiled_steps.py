"""A step of a small network with compiled backbones beside one without, for tests in one process and in several."""

import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from excb.distributed.collectives import rank
from excb.distributed.parallel import run_joined
from excb.errors import UserError
from excb.pretrain.initialise import build_model
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan.speed import random_batch
from excb.pretrain.recipe import Recipe
from excb.pretrain.step import trainer_for
from tests.pretrain.small_runs import OVERRIDES

CPU = torch.device("cpu")
PRECISIONS = ("fp32", "bf16", "fp16", "fp64")
VIT = (
    "model.backbone=timm:vit_tiny_patch16_224",
    'model.options={"patch_size": 16, "embed_dim": 8, "depth": 1, "num_heads": 2, "img_size": 32}',
    "model.drop_path=0.4",
)
RESNET = ("method.head=batchnorm",)  # that of the small runs


def matrix(
    network: tuple[str, ...], precisions: tuple[str, ...], backend: str, checkpointing: tuple[bool, ...] = (False, True)
) -> list[dict[str, Any]]:
    """A compiled step for each precision, with and without recomputing."""
    return [
        compiled_step((*network, f"efficiency.precision={precision}"), backend, checkpointing=recomputed)
        for precision, recomputed in itertools.product(precisions, checkpointing)
    ]


def compiled_step(overrides: tuple[str, ...], backend: str, *, checkpointing: bool) -> dict[str, Any]:
    """Graphs and graph breaks of a step, and its loss and gradient norm, compiled and not."""
    small = (*OVERRIDES, "views.local_views=0", "optim.warmup_epochs=0", *overrides)
    recipe = apply(find_recipe("quickstart"), small).change(efficiency={"checkpointing": checkpointing})
    plain = _step(recipe)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with compiled_by(backend):
        compiled = _step(recipe.change(efficiency={"compile": True}))
    counters = torch._dynamo.utils.counters
    return {
        "precision": recipe.efficiency.precision,
        "checkpointing": checkpointing,
        "breaks": sum(counters["graph_break"].values()),
        "graphs": counters["stats"]["unique_graphs"],
        "plain": plain,
        "compiled": compiled,
    }


@contextmanager
def compiled_by(backend: str) -> Iterator[None]:
    """Have `nn.Module.compile` use another backend than the inductor, which takes longer and traces the same graphs."""
    usual = nn.Module.compile

    def compile_in_place(module: nn.Module, **options: Any) -> None:
        usual(module, backend=backend, **options)

    with mock.patch.object(nn.Module, "compile", compile_in_place):
        yield


def _step(recipe: Recipe) -> list[float]:
    """Loss and gradient norm of a first step."""
    made = trainer_for(build_model(recipe), recipe, CPU, steps_per_epoch=4)
    output, norm = made.step(random_batch(recipe, 4), 0)
    return [float(output.loss), float(norm)]


def main(folder: str) -> int:
    """Write the ViT's matrix of this process, one of several, into `folder`, or why torch may not compile a part."""

    def work(_device: torch.device) -> int:
        torch.set_num_threads(1)
        found: dict[str, Any] = {"stored": matrix(VIT, PRECISIONS, "eager", (False,))}
        try:
            found["recomputed"] = matrix(VIT, PRECISIONS, "eager", (True,))
        except UserError as error:
            found["refusal"] = str(error)
        Path(folder, f"{rank()}.json").write_text(json.dumps(found), encoding="utf-8")
        return 0

    return run_joined("test", "cpu", work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
