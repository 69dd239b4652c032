"""Run folders for tests: checkpoints as the training loop writes them, of a real but tiny network, without training."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from excb.checkpoint import run_checkpoint
from excb.pretrain.initialise import build_model
from excb.pretrain.recipe import Recipe
from excb.pretrain.recipes import RECIPES
from excb.pretrain.step import state_tensors

TINY_RESNET: dict[str, Any] = {
    "backbone": "timm:resnet10t",
    "options": {"channels": [8, 16, 24, 32], "stem_width": 8},
}
TINY_VIT: dict[str, Any] = {"backbone": "vit_tiny", "options": {"embed_dim": 12, "depth": 1, "num_heads": 2}}


def tiny_recipe(model: dict[str, Any] | None = None, **views: Any) -> Recipe:
    """The quickstart with a network of a few thousand weights."""
    recipe = RECIPES["quickstart"]().change(
        model=model or TINY_RESNET,
        method={"clusters": 4, "hidden": 8, "width": 4},
        views={"global_size": 48, "local_size": 32, "eval_resize": 64, "eval_crop": 64} | views,
    )
    assert isinstance(recipe, Recipe)
    return recipe


def contents(recipe: Recipe, *, step: int, seed: int = 0) -> dict[str, Any]:
    """The contents that the training loop saves; student and teacher differ, and so do their BatchNorm statistics."""
    model = build_model(recipe.change(run={"seed": seed}))
    random = torch.Generator().manual_seed(100 * seed + step)
    for tensor in model.state_dict().values():
        if tensor.ndim > 1:
            tensor.mul_(1 + torch.randn(tensor.shape, generator=random))
        elif tensor.is_floating_point():
            tensor.add_(torch.rand(tensor.shape, generator=random))  # variances stay positive
    return {
        "step": step,
        "epoch": step / 10,
        "architecture": dataclasses.asdict(recipe.model.architecture),
        "preprocessing": recipe.views.preprocessing.to_dict(),
        "recipe": recipe.to_dict(),
        "data": {"root": "images", "images": 2, "fingerprint": "0" * 64, "classes": None},
        "model": state_tensors(model),
        "optimizer": {},
        "statistics": {},
        "broken": {"seen": [], "found": 0},
        "seconds": 1.0,
        "images": 2,
        "best": None,
        "last": None,
    }


def write_run(folder: Path, *steps: int, recipe: Recipe | None = None, **changes: Any) -> Path:
    """Write a run folder with a checkpoint for each step; `changes` replace parts of the contents."""
    for step in steps:
        run_checkpoint.write_run_checkpoint(
            contents(recipe or tiny_recipe(), step=step) | changes, folder / "checkpoints" / f"step-{step}.pt"
        )
    return folder


def distilled_recipe(*names: str, clustering: bool = False) -> dict[str, Any]:
    """Plain values of the recipe of a run that learns from teachers of these names."""
    values = tiny_recipe().to_dict()
    return values | {"method": values["method"] | {"clustering": clustering}, "distil": {"teachers": list(names)}}


def write_student(folder: Path, *teachers: dict[str, Any], clustering: bool = False, **changes: Any) -> Path:
    """Write the run folder of a student: a checkpoint of step 7 that records these teachers."""
    recipe = distilled_recipe(*(each["name"] for each in teachers), clustering=clustering)
    values = contents(tiny_recipe(), step=7) | {"recipe": recipe, "teachers": list(teachers)} | changes
    run_checkpoint.write_run_checkpoint(values, folder / "checkpoints" / "step-7.pt")
    return folder


def damage(file: Path) -> None:
    """Cut a file short."""
    file.write_bytes(file.read_bytes()[:-200])


def pictures(count: int = 3, side: int = 64, seed: int = 0) -> torch.Tensor:
    """Normalised images [N, 3, H, W]."""
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def photograph(side: int = 90, seed: int = 0) -> Image.Image:
    """A colourful picture that is not square."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    return coarse.resize((side * 4 // 3, side), Image.Resampling.BICUBIC)


def features(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The features of a network in eval mode."""
    assert not network.training
    with torch.no_grad():
        result = network(images)
    assert isinstance(result, torch.Tensor)
    return result
