"""Runs small enough for tests: a few dozen tiny pictures, overrides that fit the quickstart recipe, comparisons."""

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from excb.pretrain import loop
from excb.pretrain.data.batch import ViewBatch

OVERRIDES = (
    "model.backbone=timm:resnet10t",
    "method.contrast=0",
    "method.projector_output_norm=false",
    'model.options={"channels": [8, 8, 16, 16], "stem_width": 4}',
    "method.clusters=12",
    "method.hidden=16",
    "method.width=8",
    "views.global_size=32",
    "views.local_size=16",
    "views.eval_resize=32",
    "views.eval_crop=32",
    "optim.epochs=3",
    "optim.batch=8",
    "monitor.every_epochs=2",
    "monitor.k=3",
    "run.log_steps=1",
    "efficiency.workers=0",
    "efficiency.device=cpu",
)
# OVERRIDES as Python has them.
VALUES: dict[str, Any] = {
    "model": {"backbone": "timm:resnet10t", "options": {"channels": [8, 8, 16, 16], "stem_width": 4}},
    "method": {"contrast": 0, "projector_output_norm": False, "clusters": 12, "hidden": 16, "width": 8},
    "views": {"global_size": 32, "local_size": 16, "eval_resize": 32, "eval_crop": 32},
    "optim": {"epochs": 3, "batch": 8},
    "monitor": {"every_epochs": 2, "k": 3},
    "run": {"log_steps": 1},
    "efficiency": {"workers": 0, "device": "cpu"},
}


def write_images(folder: Path, *, classes: int = 3, each: int = 9, side: int = 36) -> Path:
    """Write pictures that differ by class: stripes of a class's direction and colour, with noise."""
    random = np.random.default_rng(5)
    rows, columns = np.mgrid[:side, :side]
    for label in range(classes):
        target = folder / f"class{label}"
        target.mkdir(parents=True)
        wave = np.sin((rows * np.cos(label) + columns * np.sin(label)) / 3)[..., None]
        for number in range(each):
            colour = random.uniform(60, 120, 3) + 40 * (np.arange(3) == label)
            pixels = colour + 50 * wave + random.normal(0, 15, (side, side, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(target / f"{number}.png")
    return folder


def assert_same(first: Any, second: Any, where: str = "", *, but: Collection[str] = ("seconds", "peak_memory")) -> None:
    """Everything in two checkpoints is equal to the last bit, but for what has these names."""
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second), where
    elif isinstance(first, dict):
        assert first.keys() == second.keys(), where
        for name in first.keys() - set(but):
            assert_same(first[name], second[name], f"{where}.{name}", but=but)
    elif isinstance(first, list):
        assert len(first) == len(second), where
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            assert_same(one, other, f"{where}[{number}]", but=but)
    else:
        assert first == second, where


@contextmanager
def stopped_before(step: int) -> Iterator[None]:
    """Have runs of this process asked to stop, by SIGTERM, before they take the step of this number."""
    usual = loop.TrainingLoop._step

    def interrupted(run: loop.TrainingLoop, batch: ViewBatch) -> object:
        if run.progress.step == step:
            signal.raise_signal(signal.SIGTERM)
        return usual(run, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.TrainingLoop, "_step", interrupted)
        yield
