"""The job that every engine gets, and the interface of an engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from excb.console import Reporter
from excb.distributed.collectives import rank
from excb.distributed.signals import StopRequest
from excb.images.pixels import EIGHT_BIT
from excb.networks.backbone import weights_hash

from ...coco.annotations import CocoSet
from .settings import DetectionSettings, stored

# Settings that do not affect training, so that a resumed run may change them.
RESUMABLE_CHANGES = frozenset({"test_size", "rpn_pre_test", "rpn_post_test", "save_every"})


@dataclass(frozen=True)
class Job:
    """One detection run."""

    settings: DetectionSettings  # its definition
    depth: int  # of the ResNet: 50, 101 or 152
    backbone: Mapping[str, Tensor]  # the ResNet's tensors in torchvision's names, without a classifier
    train: CocoSet  # images to train on; never empty
    val: CocoSet  # images to evaluate on, with the categories of `train`
    folder: Path  # of the run: checkpoints, logs, pictures
    device: torch.device  # where to compute
    workers: int  # number of data loading processes per training process
    reporter: Reporter  # for messages and progress

    @cached_property
    def weights(self) -> str:
        """SHA-256 of the backbone's tensors."""
        return weights_hash(self.backbone)

    @property
    def rank0_reporter(self) -> Reporter:
        """The reporter on rank 0, a quiet one on the other ranks."""
        return self.reporter if rank() == 0 else Reporter(quiet=True)

    @property
    def training(self) -> dict[str, Any]:
        """The values that must be equal for training to resume, by name."""
        settings = {name: value for name, value in stored(self.settings).items() if name not in RESUMABLE_CHANGES}
        pixels = self.train.pixels
        mapped = {} if pixels == EIGHT_BIT else {"range": pixels.range}
        return settings | {"depth": self.depth, "weights": self.weights, "images": self.train.fingerprint} | mapped


class Engine(Protocol):
    """Builds, trains and runs a detector; a module with these functions."""

    differences: tuple[str, ...]  # from Detectron2, one sentence each; noted in every result

    def train_detector(self, job: Job, stop: StopRequest) -> bool:
        """Train to the end, resuming from the newest checkpoint in the folder if there is one.

        Returns:
            Whether training finished. If not, a signal asked to stop, and a checkpoint is saved.

        Raises:
            UserError: the settings cannot run on this machine, or memory is too small.
        """

    def predict(self, job: Job, images: CocoSet) -> list[dict[str, Any]]:
        """Detections of the trained detector, as COCO's result dicts with the set's own category ids.

        All ranks call this. Rank 0 gets all results, the others an empty list.
        """

    def first_losses(self, job: Job, images: int, iterations: int) -> list[float]:
        """Train a new detector on the first `images` training images, and return the loss of every step.

        Only one rank calls this. It writes nothing and leaves the global random state unchanged.
        """
