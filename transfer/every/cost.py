"""The cost of a backbone: parameters, FLOPs of one image, and images per second, measured here."""

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from excb.console import plural
from excb.networks.backbone import REFUSALS, evaluating

from ..task import Task

FACTS = ("parameters, M", "GFLOPs", "images/s")  # of a table
SECONDS, FEWEST, MOST = 1.0, 3, 200  # of timing, and of timed batches


@dataclass(frozen=True)
class Cost:
    """Of a forward pass of the backbone alone, without reading images.

    Attributes:
        parameters: their number.
        flops: of one image, a multiply-add being two; None where torch cannot count them.
        images_per_second: the median of batches.
        where: device, threads, batch and size that this was measured with.
    """

    parameters: int
    flops: int | None
    images_per_second: float
    where: str

    @property
    def facts(self) -> list[str]:
        """Parameters in millions, FLOPs of an image in thousand millions, and images per second, as text."""
        flops = "" if self.flops is None else f"{self.flops / 1e9:.3g}"
        return [f"{self.parameters / 1e6:.3g}", flops, f"{self.images_per_second:,.0f}"]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def where(task: Task) -> str:
    """The device and batch that the speed is measured with, in words."""
    crop, device = task.preprocessing.crop, task.device
    if device.type == "cuda":
        machine = torch.cuda.get_device_name(device)
    else:
        threads = torch.get_num_threads()
        machine = f"{device.type}, {plural(threads, 'thread')}"
    return f"{machine}, batches of {plural(task.batch, 'image')} of {crop} x {crop} pixels"


def cost_of(task: Task) -> Cost:
    """Count and time forward passes of a task's backbone."""
    network = task.backbone
    parameters = sum(parameter.numel() for parameter in network.network.parameters())
    return Cost(parameters, flops(task), round(images_per_second(task), 1), where(task))


@torch.no_grad()
def flops(task: Task) -> int | None:
    """Of a forward pass of one image."""
    crop = task.preprocessing.crop
    with evaluating(task.backbone), FlopCounterMode(display=False) as counter:
        try:
            task.backbone(torch.zeros(1, task.preprocessing.channels, crop, crop, device=task.device))
        except REFUSALS:
            return None
    return int(counter.get_total_flops())


@torch.no_grad()
def images_per_second(task: Task) -> float:
    """Images that pass through the backbone in a second, once it is warm."""
    crop, seconds = task.preprocessing.crop, list[float]()
    images = torch.zeros(task.batch, task.preprocessing.channels, crop, crop, device=task.device)
    with evaluating(task.backbone):
        _timed(task, images)
        while len(seconds) < FEWEST or (sum(seconds) < SECONDS and len(seconds) < MOST):
            seconds.append(_timed(task, images))
    return task.batch / statistics.median(seconds)


def _timed(task: Task, images: torch.Tensor) -> float:
    start = time.perf_counter()
    task.backbone(images)
    if task.device.type == "cuda":
        torch.cuda.synchronize(task.device)
    return time.perf_counter() - start
