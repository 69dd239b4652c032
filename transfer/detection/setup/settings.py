"""The settings of a detection run: recipes and schedules; every setting has its source.

The recipe that papers cite as "following MoCo" (repository facebookresearch/moco, folder detection, removed in 2026) is
`ssl`; `stock` is Detectron2's mask_rcnn_R_50_C4. docs/detection.md compares them. This file does not import torch.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from excb.errors import UserError, nearest_name, require
from excb.options import converted, field_types, option, require_choices

BATCH = 16  # of the published schedules


@dataclass(frozen=True, kw_only=True)
class DetectionSettings:
    """A Mask R-CNN on a ResNet's features, and its training. Lengths are pixels, colours 0 to 255."""

    # The network
    architecture: Literal["c4", "fpn"] = option(
        "c4", "c4: RPN and RoIs on conv4, conv5 in the head; fpn: feature pyramid", source="MoCo, ExCB: C4"
    )
    masks: bool = option(True, "masks, too; false: Faster R-CNN, boxes alone", source="the annotations")
    norm: Literal["SyncBN", "naiveSyncBN", "BN", "FrozenBN"] = option(
        "SyncBN",
        "of backbone and extra norm; naiveSyncBN is Detectron2's, BN is not synchronised",
        source="MoCo's first release, OpenMMLab; MoCo later: naiveSyncBN; stock: FrozenBN",
    )
    extra_norm: bool = option(True, "a norm after conv5 in C4's head", source="MoCo; stock: none")
    freeze_at: int = option(0, "frozen stages: 0 none, 2 stem and conv2", source="MoCo: 0; stock: 2")
    stride_in_1x1: bool = option(
        False, "stride in the 1x1 convolution of a block", source="torchvision's networks: no; stock's MSRA ones: yes"
    )
    input_format: Literal["RGB", "BGR"] = option("RGB", "order of channels", source="MoCo: RGB; stock: BGR")
    mean: tuple[float, float, float] = option(
        (123.675, 116.28, 103.53), "channel means, in RGB", source="the checkpoint's"
    )
    std: tuple[float, float, float] = option(
        (58.395, 57.12, 57.375), "channel standard deviations, in RGB", source="the checkpoint's; stock: 1"
    )
    precise_bn: bool = option(True, "recompute BatchNorm's statistics after training", source="MoCo: yes; stock: no")
    precise_bn_iterations: int = option(200, "batches for precise_bn", source="Detectron2")

    # Images
    min_sizes: tuple[int, ...] = option(
        (640, 672, 704, 736, 768, 800), "shorter sides in training, one drawn per image", source="Detectron2"
    )
    flip: bool = option(True, "mirror half of the training images", source="Detectron2")
    test_size: int = option(800, "shorter side in evaluation", source="Detectron2")
    max_size: int = option(1333, "largest longer side", source="Detectron2")

    # Training
    optimizer: Literal["sgd", "adamw"] = option("sgd", "sgd or adamw (for short runs)", source="Detectron2")
    batch: int = option(BATCH, "images per step, over all ranks", source="Detectron2")
    base_lr: float = option(0.02, "learning rate after warm-up", source="Detectron2")
    momentum: float = option(0.9, "of sgd", source="Detectron2")
    weight_decay: float = option(1e-4, "of all weights but norms'", source="Detectron2")
    warmup: int = option(1000, "steps of linear warm-up from base_lr / 1000", source="Detectron2")
    iterations: int = option(90_000, "training steps", source="1x")
    steps: tuple[int, ...] = option((60_000, 80_000), "steps at which the learning rate is divided by 10", source="1x")
    rois: int = option(512, "regions per image for the heads' losses", source="Detectron2")
    rpn_post_test: int = option(1000, "proposals kept in evaluation", source="Detectron2")
    rpn_pre_test: int = option(
        6000, "proposals before NMS in evaluation (1,000 per level in fpn)", source="Detectron2 C4"
    )
    precision: Literal["fp32", "amp"] = option("fp32", "amp: mixed precision on GPUs", source="Detectron2")
    save_every: int = option(5000, "steps between checkpoints", source="Detectron2")
    seed: int = option(0, "of image order, sizes, flips and new weights", source="ours")

    def __post_init__(self) -> None:
        """Raise UserError if a value is out of range."""
        require_choices("detection", self)
        require(0 <= self.freeze_at <= 5, "freeze_at must lie between 0 and 5")
        require(self.batch >= 1, "batch must be at least 1")
        require(self.iterations >= 1, "iterations must be at least 1")
        require(self.base_lr > 0, "base_lr must be above 0")
        require(self.save_every >= 1, "save_every must be at least 1")
        require(self.rois >= 1, "rois must be at least 1")
        require(min(self.min_sizes, default=0) > 0, "min_sizes must be one or more lengths above 0")
        require(0 < self.test_size <= self.max_size, "test_size must be above 0, and at most max_size")
        require(max(self.min_sizes) <= self.max_size, "min_sizes must be at most max_size")
        require(all(step > 0 for step in self.steps), "steps must be above 0")
        require(self.steps == tuple(sorted(self.steps)), "steps must ascend")
        require(len(self.mean) == len(self.std) == 3, "mean and std must be three numbers each")
        require(min(self.std) > 0, "std must be above 0")
        require(self.precise_bn_iterations >= 1, "precise_bn_iterations must be at least 1")
        for name in ("warmup", "weight_decay", "seed"):
            require(getattr(self, name) >= 0, f"{name} must be 0 or more")
        require(0 <= self.momentum < 1, "momentum must lie in [0, 1)")
        require(min(self.rpn_pre_test, self.rpn_post_test) >= 1, "rpn_pre_test and rpn_post_test must be at least 1")


def stored(settings: DetectionSettings) -> dict[str, Any]:
    """Settings as runs and results keep them. `masks` is left out where it is on: earlier ones had no other."""
    return {name: value for name, value in asdict(settings).items() if name != "masks" or not value}


RECIPES: Mapping[str, Mapping[str, Any]] = {
    "ssl": {},
    "stock": {"norm": "FrozenBN", "extra_norm": False, "freeze_at": 2, "precise_bn": False},
}

SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "1x": {"iterations": 90_000, "steps": (60_000, 80_000)},
    "2x": {"iterations": 180_000, "steps": (120_000, 160_000)},
    # Does everything run end to end? Takes minutes on two cores; its figures mean nothing.
    "smoke": {
        "min_sizes": (192, 256),
        "test_size": 256,
        "max_size": 427,
        "batch": 2,
        "iterations": 12,
        "steps": (9,),
        "warmup": 3,
        "base_lr": 0.0025,
        "rois": 32,
        "rpn_pre_test": 500,
        "rpn_post_test": 50,
        "precise_bn_iterations": 2,
        "save_every": 4,
    },
    # Can the detector overfit a few images?
    "overfit": {
        "min_sizes": (192,),
        "test_size": 192,
        "max_size": 320,
        "flip": False,
        "optimizer": "adamw",
        "batch": 4,
        "iterations": 170,
        "steps": (140,),
        "warmup": 10,
        "base_lr": 5e-4,
        "rois": 32,
        "rpn_pre_test": 500,
        "rpn_post_test": 100,
        "precise_bn_iterations": 8,
        "save_every": 20,
    },
}
# Number of training images that `overfit` trains and evaluates on, those with the largest objects: at a stride of 16
# pixels a network cannot learn objects of ten pixels, and at this size most of COCO's are no larger.
OVERFIT_IMAGES = 8


def settings_for(
    schedule: str, recipe: str = "ssl", *, batch: int | None = None, options: Mapping[str, Any] | None = None
) -> DetectionSettings:
    """The settings of a schedule.

    Args:
        schedule: 1x, 2x, smoke or overfit.
        recipe: ssl or stock.
        batch: images per step; the linear rule (Goyal et al., 2017) scales lr, length and steps of 1x and 2x.
        options: other fields; they are set as given and nothing is rescaled for them.

    Raises:
        UserError: no such schedule, recipe or option, or a value of another type or out of range.
    """
    for name, table, kind in ((schedule, SCHEDULES, "schedule"), (recipe, RECIPES, "recipe")):
        if name not in table:
            raise UserError(f"no {kind} is named '{name}'{nearest_name(name, table)} (there are {', '.join(table)})")
    options = dict(options or {})
    names = [entry.name for entry in fields(DetectionSettings)]
    if unknown := [name for name in options if name not in names]:
        close = nearest_name(unknown[0], names)
        raise UserError(f"detection has no option '{unknown[0]}'{close} (there are {', '.join(names)})")
    settings = DetectionSettings(**{**RECIPES[recipe], **SCHEDULES[schedule]})
    if batch is not None:
        require(batch >= 1, "batch must be at least 1")
        settings = rescaled(settings, batch) if schedule in {"1x", "2x"} else replace(settings, batch=batch)
    types = field_types(DetectionSettings)
    return replace(settings, **{name: converted(name, value, types[name]) for name, value in options.items()})


def rescaled(settings: DetectionSettings, batch: int) -> DetectionSettings:
    """The same training with another batch size: lr scales with it, lengths inversely."""
    factor = batch / settings.batch
    return replace(
        settings,
        batch=batch,
        base_lr=settings.base_lr * factor,
        iterations=round(settings.iterations / factor),
        steps=tuple(round(step / factor) for step in settings.steps),
        warmup=round(settings.warmup / factor),
    )


def parse_option(text: str) -> tuple[str, Any]:
    """Parse an option of the command line, such as "norm=BN" or "min_sizes=480,512".

    Raises:
        UserError: there is no such option, or its value has the wrong type.
    """
    name, equals, value = text.partition("=")
    entry = next((entry for entry in fields(DetectionSettings) if entry.name == name), None)
    if entry is None or not equals:
        names = [entry.name for entry in fields(DetectionSettings)]
        close = nearest_name(name, names)
        raise UserError.on_all_ranks(f"'{text}' sets no option{close}: write OPTION=VALUE, such as norm=BN")
    default: Any = entry.default
    try:
        if isinstance(default, bool):
            return name, {"true": True, "false": False}[value.lower()]
        if isinstance(default, tuple):
            return name, tuple(type(default[0])(item) for item in value.split(","))
        return name, type(default)(value)
    except (KeyError, ValueError):
        kind = "true or false" if isinstance(default, bool) else f"like {default}"
        raise UserError.on_all_ranks(f"{name} must be {kind}, not '{value}'") from None


def text_of(value: Any) -> str:
    """A value as an option of the command line has it."""
    if isinstance(value, tuple):
        return ",".join(f"{item:g}" for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
