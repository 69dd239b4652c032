"""A detection job made of a checkpoint and annotated images, and what its result says of both."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from excb.console import Reporter, plural
from excb.distributed.collectives import world_size
from excb.distributed.workers import worker_count
from excb.errors import require
from excb.hub.backbone import Backbone
from excb.hub.loading import load
from excb.images.pixels import EIGHT_BIT
from excb.ledger import NOTHING

from ..coco.annotations import CocoSet
from ..data.mapping import all_on_one_mapping, declared_pixels
from ..task import require_colours
from .options import DetectionOptions, DetectorInputs
from .setup.job import Job
from .setup.settings import OVERFIT_IMAGES, DetectionSettings, text_of

DEPTHS = {"resnet50": 50, "resnet101": 101, "resnet152": 152}


@dataclass(frozen=True)
class DetectionTask:
    """A checkpoint and annotated images, ready to train a detector on."""

    job: Job  # what the engine gets
    checkpoint: str  # as the user named it
    network: str  # teacher or student

    @classmethod
    def prepare(
        cls,
        inputs: DetectorInputs,
        options: DetectionOptions,
        train: CocoSet,
        val: CocoSet,
        *,
        device: torch.device,
        reporter: Reporter,
    ) -> "DetectionTask":
        """Load and check everything before any work starts, apart from the engine.

        Raises:
            UserError: the checkpoint cannot be used for detection, or contradicts the settings.
        """
        backbone = load(inputs.ckpt, network=inputs.network)
        name = backbone.entry.architecture.name
        require(
            name in DEPTHS,
            f"detection takes a {' or '.join(DEPTHS)}, and {inputs.ckpt} is a {name}: choose another checkpoint",
        )
        require_colours(backbone, "detection")
        settings = replace(_settings(inputs, options, backbone), masks=train.masks)
        require(
            settings.batch % world_size() == 0,
            f"a batch of {plural(settings.batch, 'image')} cannot be divided among "
            f"{plural(world_size(), 'process', 'processes')}: set --batch",
        )
        if options.schedule == "overfit":
            train = val = train.clearest(OVERFIT_IMAGES)
        (train, val), _ = all_on_one_mapping(
            [train, val],
            backbone.transform,
            declared_pixels(inputs.range, None, backbone.transform.pixels),
            note=reporter.note,
            warn=reporter.warn,
            colours_of="detection",
        )
        label = re.sub(r"[^\w.-]", "-", Path(inputs.ckpt).name or "checkpoint")
        folder = options.run or Path("runs") / f"detection-{label}-{options.schedule}"
        workers = worker_count(-1 if inputs.workers is None else inputs.workers)
        weights = backbone.network.state_dict()
        job = Job(settings, DEPTHS[name], weights, train, val, folder, device, workers, reporter)
        return cls(job, str(inputs.ckpt), inputs.network)

    @property
    def sets(self) -> dict[str, CocoSet]:
        """The annotated images, by their name in results."""
        return {"train": self.job.train, "test": self.job.val}

    def describe(self) -> dict[str, Any]:
        """Checkpoint, data and ledger, for the result."""
        data: dict[str, Any] = {
            name: {"root": str(images.listed_in), "images": len(images), "fingerprint": images.fingerprint}
            | ({"repaired": dict(images.repaired)} if images.repaired else {})
            | ({"pixels": images.pixels.to_dict()} if images.pixels != EIGHT_BIT else {})
            for name, images in self.sets.items()
        }
        checkpoint = {
            "source": self.checkpoint,
            "architecture": f"resnet{self.job.depth}",
            "network": self.network,
            "weights_sha256": self.job.weights,
        }
        ledger = sum((images.ledger.of(name) for name, images in self.sets.items()), NOTHING)
        return {"checkpoint": checkpoint, "data": data | {"classes": len(self.job.val.classes)}, "ledger": ledger}

    def unknown_notes(self, _what: str = "") -> list[str]:
        """No notes: both sets have the same categories."""
        return []


def _settings(inputs: DetectorInputs, options: DetectionOptions, backbone: Backbone) -> DetectionSettings:
    """The settings with the checkpoint's normalisation; settings that contradict its weights are refused."""
    colours = {
        name: tuple(round(255 * share, 4) for share in getattr(backbone.transform, name)) for name in ("mean", "std")
    }
    settings = options.settings(colours)
    for name, value in ({"input_format": "RGB", "stride_in_1x1": False} | colours).items():
        setting = getattr(settings, name)
        require(
            setting == value,
            f"{name}={text_of(setting)}, but {inputs.ckpt} was trained with {text_of(value)}: leave it out",
        )
    return settings
