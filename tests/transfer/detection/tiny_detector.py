"""Detectors that train in a moment: ResNets of one narrow block a stage, small images, and jobs with them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck, ResNet

from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.distributed.signals import StopRequest
from excb.transfer.coco.reading import open_coco
from excb.transfer.detection.setup.job import Job
from excb.transfer.detection.setup.settings import settings_for
from excb.transfer.detection.torchvision import engine, model

OPTIONS = {
    "min_sizes": (48, 64),
    "test_size": 64,
    "max_size": 128,
    "iterations": 4,
    "steps": (3,),
    "warmup": 2,
    "rois": 8,
    "rpn_post_test": 20,
    "save_every": 2,
}


class NarrowResNet(ResNet):
    """An eighth of ResNet-50's channels: 32, 64, 128 and 256."""

    def _make_layer(self, block: Any, planes: int, *arguments: Any, **options: Any) -> nn.Sequential:
        return super()._make_layer(block, planes // 8, *arguments, **options)


def narrow(depth: int, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> NarrowResNet:
    """In the place of `torchvision_model.detector_resnet`."""
    return NarrowResNet(Bottleneck, [1, 1, 1, 1], norm_layer=norm)


def tensors(network: ResNet) -> dict[str, Tensor]:
    """A backbone as a checkpoint has it: norms with statistics of their own, no classifier."""
    random = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for name, low in (("weight", 0.5), ("bias", -0.5), ("running_mean", -0.5), ("running_var", 0.5)):
                getattr(module, name).data.uniform_(low, low + 1, generator=random)
    return {name: value.clone() for name, value in network.state_dict().items() if not name.startswith("fc.")}


@contextmanager
def small_networks() -> Iterator[None]:
    """Let every new ResNet be narrow, computed by one thread; torch's generator starts at 0, and is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setattr(model, "detector_resnet", narrow)
        torch.manual_seed(0)
        yield
    torch.set_num_threads(before)


def images() -> list[Tensor]:
    return [torch.randint(256, (3, *side), dtype=torch.uint8) for side in ((64, 80), (50, 96))]


def targets() -> list[dict[str, Tensor]]:
    objects = []
    for boxes, labels in (([[4.0, 6, 40, 50], [30, 8, 76, 60]], [1, 3]), ([[10.0, 5, 70, 45]], [2])):
        masks = torch.zeros(len(boxes), 64 if len(boxes) == 2 else 50, 80 if len(boxes) == 2 else 96, dtype=torch.bool)
        for mask, (left, top, right, bottom) in zip(masks, torch.tensor(boxes).int().tolist(), strict=True):
            mask[top:bottom, left:right] = True
        objects.append({"boxes": torch.tensor(boxes), "labels": torch.tensor(labels), "masks": masks})
    return objects


def make_job(data: Path, folder: Path, **options: Any) -> Job:
    train, val = open_coco(data)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = tensors(narrow(50))
    return Job(
        settings=settings_for("smoke", options=OPTIONS | options),
        depth=50,
        backbone=backbone,
        train=train,
        val=val,
        folder=folder,
        device=torch.device("cpu"),
        workers=0,
        reporter=Reporter(quiet=True),
    )


def train(job: Job) -> bool:
    with StopRequest() as stop:
        return engine.train_detector(job, stop)


def newest(job: Job) -> dict[str, Any]:
    found = run_checkpoint.read_newest(job.folder, pytest.fail)
    assert found is not None
    return found[1]
