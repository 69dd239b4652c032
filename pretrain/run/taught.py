"""A student beside its teachers: what each network costs, and when which of them should be used."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from excb.networks.backbone import evaluating, image_channels, uncompiled

BATCH, PASSES = 8, 5  # images in a pass, and passes of which the median counts
CHEAPER = 0.8  # of a teacher's time or size, from which on a student saves something


@dataclass(frozen=True)
class NetworkCost:
    """The cost of a network in use."""

    parameters: int
    mebibytes: float  # of its tensors, as a file holds them
    milliseconds: float  # an image in batches of `BATCH`, on the run's machine

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "NetworkCost":
        """From plain values.

        Raises:
            LookupError, TypeError, ValueError: it is not a cost.
        """
        return cls(int(stored["parameters"]), float(stored["mebibytes"]), float(stored["milliseconds"]))


@torch.no_grad()
def measure_cost(network: nn.Module, side: int, device: torch.device) -> NetworkCost:
    """Time a network on random images of `side` pixels, and count its tensors.

    Args:
        network: [B, C, H, W] -> [B, D], on the device; its modes are restored.
        side: of its inputs.
        device: where it is.
    """
    one = next(network.parameters(), torch.empty(0))
    images = torch.randn(BATCH, image_channels(network), side, side, device=device, dtype=one.dtype)
    seconds = []
    with evaluating(network), uncompiled(network):
        for _ in range(PASSES + 1):  # the first one warms up
            start = time.perf_counter()
            network(images)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return NetworkCost(parameters, round(size / 2**20, 2), round(1e3 * statistics.median(seconds[1:]) / BATCH, 3))


@dataclass(frozen=True)
class BesideTeacher:
    """A student beside one of its teachers.

    Attributes:
        teacher: its name.
        figure: what is compared, in words.
        student_value: of that figure, in percent.
        teacher_value: likewise.
        margin: points that a difference must exceed to be no accident of these images.
        student: its cost.
        cost: of the teacher.
    """

    teacher: str
    figure: str
    student_value: float
    teacher_value: float
    margin: float
    student: NetworkCost
    cost: NetworkCost

    def sentence(self, *, helps: bool) -> str:
        """A sentence: how much the student keeps, how much it saves, and which of the two to use.

        Args:
            helps: whether the student is ahead of its references.
        """
        kept = 100 * self.student_value / max(self.teacher_value, 1e-9)
        behind = self.teacher_value - self.student_value
        keeps = (
            f"It keeps {kept:.0f} % of the {self.figure} of {self.teacher} ({self.student_value:.1f} of "
            f"{self.teacher_value:.1f} %) {self._price()}"
        )
        if not helps:
            return (
                f"{keeps}. On these images it does not help: use {self.teacher} as it is, unless labelled images that "
                "neither has seen say otherwise (`excb-eval knn`)."
            )
        if not self._cheaper():
            return f"{keeps}, so it saves nothing: use {self.teacher} as it is."
        if behind <= self.margin:
            return f"{keeps}, a difference within chance ({self.margin:.1f}): use the student."
        return (
            f"{keeps}. Use it where time or size decides; else use {self.teacher}, which is {behind:.1f} points ahead."
        )

    def _cheaper(self) -> bool:
        mine, theirs = self.student, self.cost
        return (
            mine.milliseconds < CHEAPER * theirs.milliseconds
            or mine.mebibytes < CHEAPER * theirs.mebibytes
            or mine.parameters < CHEAPER * theirs.parameters
        )

    def _price(self) -> str:
        time_share = self.student.milliseconds / max(self.cost.milliseconds, 1e-9)
        size_share = self.student.mebibytes / max(self.cost.mebibytes, 1e-9)
        return f"at {_share(time_share)} its time and {_share(size_share)} its size"


def _share(share: float) -> str:
    """A share as people say it before what it is of: 1/4 of, 80 % of, 1.3 times."""
    if share > 1.05:
        return f"{share:.2g} times"
    return f"1/{1 / share:.2g} of" if share <= 0.67 else f"{100 * share:.0f} % of"


def cost_rows(costs: Mapping[str, NetworkCost], values: Mapping[str, float]) -> list[list[str]]:
    """A table of networks: the figure, what each costs, and the figure per million weights, millisecond and MiB.

    Args:
        costs: by network.
        values: of the decisive figure, in percent, by network.
    """
    rows = []
    for name, cost in costs.items():
        value = values.get(name, float("nan"))
        per = (value / max(part, 1e-9) for part in (cost.parameters / 1e6, cost.milliseconds, cost.mebibytes))
        rows.append(
            [
                name,
                f"{value:.1f}",
                f"{cost.parameters / 1e6:.2f}",
                f"{cost.milliseconds:.2f}",
                f"{cost.mebibytes:.1f}",
                *(f"{each:.3g}" for each in per),
            ]
        )
    return rows
