"""Teachers and students small enough for tests, and the command line of a run that learns from them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import excb
from excb.checkpoint import run_checkpoint
from excb.hub.backbone import Backbone
from excb.method import ExCB
from excb.pretrain.distil.interface import Targets
from excb.pretrain.distil.settings import DistilSettings
from excb.pretrain.distil.teachers import Teacher, load_teachers
from excb.pretrain.initialise import build_model
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.recipe import Recipe
from tests.run_files import contents, tiny_recipe

CONV: dict[str, Any] = {"backbone": "conv4", "options": {"widths": [6, 8, 8, 12], "stem": 2}}
RESNET: dict[str, Any] = {
    "backbone": "timm:resnet10t",
    "options": {"channels": [8, 8, 8, 16], "stem_width": 4, "zero_init_last": False},
}
VIT: dict[str, Any] = {
    "backbone": "timm:vit_tiny_patch16_224",
    "options": {"patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 2, "img_size": 32},
}
# It has a norm behind its last map.
CONVNEXT: dict[str, Any] = {
    "backbone": "timm:convnext_atto",
    "options": {"depths": [1, 1, 1, 1], "dims": [4, 8, 8, 12]},
}
SIZES = {"global_size": 32, "local_size": 16, "eval_resize": 32, "eval_crop": 32}
SMALL = (
    "method.clusters=6",
    "method.hidden=8",
    "method.width=8",
    "views.global_size=32",
    "views.local_size=16",
    "views.eval_resize=32",
    "views.eval_crop=32",
    "distil.assignments=0",
    "distil.features=1",
    "distil.average=0.5",  # an eighth of a few steps is the newest alone
    "distil.hidden=8",
    "distil.clusters=5",
    "optim.epochs=2",
    "optim.batch=8",
    "monitor.every_epochs=2",
    "monitor.k=3",
    "run.log_steps=1",
    "efficiency.workers=0",
    "efficiency.device=cpu",
    "efficiency.precision=fp32",
)


def overrides(model: dict[str, Any]) -> list[str]:
    """A network as overrides."""
    return [f"model.backbone={model['backbone']}", f"model.options={json.dumps(model['options'])}"]


def write_teacher(
    folder: Path, model: dict[str, Any], *, seed: int = 1, crop: int = 40, name: str = "teacher.pt"
) -> Path:
    """The file of a network with random weights, whose images are prepared in another way than the students' views."""
    prepared = {"mean": (0.3, 0.4, 0.5), "std": (0.2, 0.3, 0.25), "eval_resize": crop + 8, "eval_crop": crop}
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    run_checkpoint.write_run_checkpoint(contents(tiny_recipe(model, **SIZES | prepared), step=0, seed=seed), file)
    return file


class Plain(nn.Module):
    """A network of a user's own, with a transform of torchvision's and BatchNorm; it is in training mode."""

    def __init__(self, *, width: int = 7, side: int = 24, normalised: bool = True) -> None:
        from torchvision import transforms

        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.layers = nn.Sequential(nn.Conv2d(3, width, 5, stride=4), nn.BatchNorm2d(width))
        parts = [transforms.Resize(side), transforms.CenterCrop(side), transforms.ToTensor()]
        self.transform = transforms.Compose(
            [*parts, *[transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.3))] * normalised]
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images).mean((2, 3))
        return features


def recipe(*more: str, model: dict[str, Any] = CONV) -> Recipe:
    """The recipe of a small student."""
    made = apply(find_recipe("distil"), [*SMALL, *overrides(model), *more])
    assert isinstance(made, Recipe)
    return made


def command(images: Path, out: Path, *words: str, model: dict[str, Any] = CONV) -> list[str]:
    """The command line of a small run; `words` are teachers and overrides."""
    return [
        "distil",
        "--data",
        str(images),
        "--out",
        str(out),
        "--quiet",
        *words[:1],
        *SMALL,
        *overrides(model),
        *words[1:],
    ]


def teachers(settings: DistilSettings, *given: Backbone, dtype: torch.dtype = torch.float32) -> list[Teacher]:
    """Teachers in memory, as a run has them."""
    names = tuple(f"memory:{number}" for number in range(len(given)))
    named = DistilSettings(**{**vars(settings), "teachers": names})
    return load_teachers(named, torch.device("cpu"), dtype=dtype, given=dict(zip(names, given, strict=True)))


def student(made: Recipe, several: Sequence[Teacher], *, dtype: torch.dtype = torch.float64) -> ExCB:
    """A new student of these teachers, in training mode."""
    return build_model(made, several).to(dtype).train()


def load(file: Path) -> Backbone:
    """A teacher of a file."""
    return excb.load(file)


def views_of(made: Recipe, images: int, *, seed: int = 0) -> tuple[Tensor, Tensor | None]:
    """Random views [G, B, 3, S, S] and [L, B, 3, s, s] in float64."""
    random, views = torch.Generator().manual_seed(seed), made.views

    def some(count: int, side: int) -> Tensor:
        return torch.randn(count, images, 3, side, side, generator=random, dtype=torch.float64)

    local = some(views.local_views, views.local_size) if views.local_views else None
    return some(views.global_views, views.global_size), local


def random_targets(several: Sequence[Teacher], count: int, images: int, *, seed: int = 5) -> list[Targets]:
    """Rows [T, B, D] as teachers might make them."""
    random = torch.Generator().manual_seed(seed)
    return [Targets(torch.randn(count, images, each.width, generator=random, dtype=torch.float64)) for each in several]
