"""What a robustness evaluation measures, and the image sets that it takes."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from excb.errors import require
from excb.hub.adopted import OwnTransform
from excb.images.subset import Subset

from ..data.named_sets import Note
from ..data.splits import stratified_split
from ..task import Task
from . import corruptions
from .corruptions import CorruptedImages
from .head import L2, held_out
from .metrics import BINS
from .names import COMMON, SEVERITIES
from .sets import OtherSet, multiple_labels, open_set


@dataclass(frozen=True)
class Request:
    """What is measured."""

    corruptions: tuple[str, ...] = COMMON
    severities: tuple[int, ...] = SEVERITIES
    images: int | None = None  # test images, a share of each class; None is all
    also: tuple[str, ...] = ()  # other test sets, as `open_set` takes them
    border: int = 0  # see `open_set`
    candidates: Literal["common", "all"] = "common"  # classes that the head may name on another set
    labels: Path | None = None  # several classes for each test image, as `multiple_labels` takes them
    reference: str | None = None  # of mCE: "alexnet", "untrained" or a result's file; None is AlexNet on ImageNet
    l2: tuple[float, ...] = L2
    seed: int = 0  # names held-out images, a share of the test images, and random numbers of corruptions

    def check(self) -> None:
        """Raise UserError unless all of it can be measured."""
        known = f"{SEVERITIES[0]} to {SEVERITIES[-1]}"
        require(all(each in SEVERITIES for each in self.severities), f"--severities are {known}")
        require(self.candidates in ("common", "all"), f"--candidates is common or all, not {self.candidates}")
        require(self.images is None or self.images >= 1, f"--images {self.images}: at least one test image")
        require(self.border >= 0, f"--border {self.border}: pixels to cut off, at least 0")
        require(all(0 < l2 < math.inf for l2 in self.l2), "--l2 must be above 0, such as 0.01")
        if self.corruptions:
            corruptions.library()


@dataclass(frozen=True)
class Ready:
    """A task, with every set opened."""

    task: Task  # its test images are those that are measured
    request: Request
    others: tuple[OtherSet, ...]
    labels: Tensor | None  # [Q, C] bool, of `Request.labels`

    @classmethod
    def of(cls, task: Task, request: Request, note: Note = lambda _line: None) -> "Ready":
        """Check and open everything before any work starts.

        Raises:
            UserError: a set or an option cannot be used.
        """
        request.check()
        assert task.train.labels is not None
        classes = task.train.classes or ()
        if len(set(request.l2)) > 1:
            held_out(task.train.labels, request.seed)
        require(
            not request.corruptions or not isinstance(task.preprocessing, OwnTransform),
            "corruptions apply to the square that the network sees, which its own transform does not name: load it by "
            "name, or name --corruptions none",
        )
        side = task.preprocessing.crop
        require(
            not request.corruptions or side >= corruptions.SMALLEST,
            f"corruptions are defined from {corruptions.SMALLEST} pixels on: --crop {side} is smaller",
        )
        task = _with_fewer(task, request)
        others = tuple(open_set(text, classes, border=request.border, note=note) for text in request.also)
        names = [other.name for other in others]
        require(len(set(names)) == len(names), f"--also has two sets with one name ({', '.join(names)}): rename one")
        for text, name in zip(request.also, names, strict=True):
            require(name != "labels", f"--also {text}: `labels` is the name of the figures of --labels, rename it")
        labels = None if request.labels is None else multiple_labels(request.labels, task.test, classes)
        return cls(task, request, others, labels)

    @cached_property
    def corrupted(self) -> dict[str, CorruptedImages]:
        """The corrupted test images by corruption, each at all severities."""
        request, task = self.request, self.task
        return {
            name: CorruptedImages(task.test, task.preprocessing, name, request.severities, request.seed)
            for name in request.corruptions
        }

    @cached_property
    def on_squares(self) -> Task:
        """The task for images that are squares of the network's size already."""
        return replace(self.task, preprocessing=replace(self.task.preprocessing, resize=self.task.preprocessing.crop))

    @cached_property
    def right(self) -> Tensor:
        """Which class is right for every test image, [Q, C] bool; none where the train set lacks its class."""
        assert self.task.test.labels is not None
        shared, whole = len(self.task.train.classes or ()), len(self.task.test.classes or ())
        return torch.eye(max(whole, shared), shared, dtype=torch.bool)[torch.from_numpy(self.task.test.labels)]

    def untrained(self) -> "Ready":
        """The same with random weights; see `Task.untrained`."""
        return replace(self, task=self.task.untrained())

    def settings(self) -> dict[str, Any]:
        """Every setting, without outcomes."""
        request = self.request
        values: dict[str, Any] = {
            "corruptions": list(request.corruptions),
            "severities": list(request.severities) if request.corruptions else [],
            "library": corruptions.version() if request.corruptions else None,
            "corrupted": "the square that the network sees",
            "head": "logistic regression on standardised features",
            "l2": sorted(set(request.l2)),
            "calibration_bins": BINS,
            "candidates": request.candidates,
            "border": request.border,
            "sets": {other.name: other.settings() for other in self.others},
            "test_images": request.images,
            "seed": request.seed,
        }
        return values


def _with_fewer(task: Task, request: Request) -> Task:
    """The task with the share of the test images that is asked for."""
    if request.images is None or request.images >= len(task.test):
        return task
    assert task.test.labels is not None
    kept = stratified_split(task.test.labels, request.images / len(task.test), request.seed)
    return replace(task, test=Subset(task.test, kept))
