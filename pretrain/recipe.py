"""The recipe of a pretraining run: frozen dataclasses of options, each with the paper's value.

The method's own options are in `excb.settings`, the recipes that have names in `pretrain.recipes`. Importing this file
needs no torch.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from excb.balancing.table import BALANCERS
from excb.console import plural
from excb.errors import require
from excb.images.pixels import Colours, Pixels
from excb.networks.architecture import MOST_CHANNELS, POSITIONS, RGB, Architecture
from excb.networks.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Corner, CropMode, Interpolation, Preprocessing
from excb.objective.table import AUTO, BACKENDS
from excb.options import option, require_choices
from excb.settings import MethodSettings

from .distil.settings import DistilSettings

CLASS_TOKEN_STD = 1e-6  # of a new class token, in timm
COLOURS = ("saturation", "hue", "grey")  # operations of `ViewSettings` that only colour images have
_ADDED_VIEWS = ("eval_crop_mode", "eval_interpolation", "eval_corner")  # left out of files while they are as usual


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """How stored values of the images become channels, where that is not left to the images."""

    channels: int | None = option(
        None,
        "channels of the images; none: as many as they have, three of colour and grey images",
        source="ours",
    )
    range: str | None = option(
        None,
        "stored values that become 0 and 255, LOW..HIGH, or one for each channel with commas between; none: 0..255 of "
        "8-bit images",
        source="ours",
    )
    colours: Colours = option(
        "srgb",
        "colours of 8-bit images: srgb converts them by an embedded profile, stored ignores it, as version 0.2 did",
        source="ours",
    )

    @property
    def pixels(self) -> Pixels | None:
        """The declared record of pixels; None where neither channels nor a range are declared."""
        channels = self.channels or RGB
        if self.range is not None:
            return replace(Pixels.declared(self.range, channels), colours=self.colours)
        return None if self.channels is None else Pixels(channels, colours=self.colours)

    def __post_init__(self) -> None:
        require_choices("data", self)
        require(
            self.channels is None or 1 <= self.channels <= MOST_CHANNELS,
            f"data.channels must lie between 1 and {MOST_CHANNELS:,}, or be none",
        )
        if self.range is not None:
            Pixels.declared(self.range, len(self.range.split(",")))  # which refuses what is no range


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The backbone."""

    backbone: str = option(
        "resnet50", "torchvision's ResNets, vit_small, conv4 or timm:NAME", paper="ResNet-50; ViT-S/16"
    )
    options: dict[str, Any] = dataclasses.field(
        default_factory=dict,
        metadata={"doc": "keyword arguments of the network, as JSON", "paper": "", "source": "ours"},
    )
    drop_path: float = option(
        0.0, "stochastic depth of the student (timm's networks)", paper="not said; ViT: DINO's", source="settled: none"
    )
    position_interpolation: Literal["antialiased", "dino"] = option(
        "antialiased",
        "bicubic interpolation of a ViT's position embeddings for other view sizes: timm's, antialiased, or DINO's",
        paper="DINO's, for ViT",
        source="timm",
    )
    class_token_std: float = option(
        CLASS_TOKEN_STD, "standard deviation of a ViT's first class token", paper="0.02 for ViT (DINO)", source="timm"
    )

    @property
    def architecture(self) -> Architecture:
        """The backbone's architecture, as checkpoints hold it; what is usual is not in its options."""
        own = {POSITIONS: self.position_interpolation} if self.position_interpolation != "antialiased" else {}
        return Architecture(self.backbone, self.options | own)

    def __post_init__(self) -> None:
        require_choices("model", self)
        require(
            POSITIONS not in self.options,
            f"{POSITIONS} is not an option of the network: set model.{POSITIONS}=antialiased or dino",
        )
        require(self.class_token_std > 0, "model.class_token_std must be above 0")
        require(0 <= self.drop_path < 1, "model.drop_path must lie in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """Multi-crop views and their augmentation (BYOL's)."""

    global_views: int = option(2, "large views G; the teacher sees these", paper="2")
    local_views: int = option(6, "small views L; 0 turns multi-crop off", paper="6 or 0")
    global_size: int = option(224, "side of global views in pixels", paper="224")
    local_size: int = option(96, "side of local views in pixels", paper="96")
    global_scale: tuple[float, float] = option(
        (0.2, 1.0), "share of the image's area in global views", paper="0.2 to 1; without multi-crop 0.14 to 1"
    )
    local_scale: tuple[float, float] = option((0.05, 0.2), "the same in local views", paper="0.05 to 0.2")
    scale_end: float | None = option(
        None,
        "move the smallest global and the largest local share to this on a cosine over the epochs",
        paper="not said (authors' code: 0.26 to 0.14)",
        source="settled: none",
    )
    ratio: tuple[float, float] = option((3 / 4, 4 / 3), "aspect ratio of crops", source="BYOL")
    interpolation: Literal["bicubic", "bilinear"] = option("bicubic", "of crops, antialiased", source="BYOL")
    flip: float = option(0.5, "probability of a horizontal flip", source="BYOL")
    jitter: float = option(0.8, "probability of colour jitter", source="BYOL")
    brightness: float = option(0.4, "largest relative change of brightness", source="BYOL")
    contrast: float = option(0.4, "largest relative change of contrast", source="BYOL")
    saturation: float = option(0.2, "largest relative change of saturation", source="BYOL")
    hue: float = option(0.1, "largest change of hue, of a full turn", source="BYOL")
    grey: float = option(0.2, "probability of losing all colour", source="BYOL")
    blur: tuple[float, float] = option(
        (1.0, 0.1),
        "probability of Gaussian blur in odd and even global views",
        paper="BYOL's (authors' code: 0, 0.9)",
        source="BYOL",
    )
    blur_local: float = option(0.5, "the same in local views", paper="DINO's (authors' code: 0)", source="DINO")
    blur_kernel: int = option(23, "side of the blur's kernel in pixels", source="BYOL (authors' code: 9)")
    blur_sigma: tuple[float, float] = option((0.1, 2.0), "range of the blur's sigma in pixels", source="BYOL")
    solarize: tuple[float, float] = option(
        (0.0, 0.2), "probability of solarization in odd and even global views", source="BYOL"
    )
    mean: tuple[float, ...] = option(
        IMAGENET_MEAN,
        "channel means of the normalisation; none: measured on the images, as always for other than three channels",
        source="ImageNet",
    )
    std: tuple[float, ...] = option(
        IMAGENET_STD,
        "channel standard deviations; none: measured",
        source="ImageNet (authors' code: 0.228 for red, a slip)",
    )
    eval_resize: int = option(
        256,
        "shorter side in evaluation, in pixels; both sides of squash, the longer one of border",
        paper="not said",
        source="authors' code",
    )
    eval_crop: int = option(
        224, "side of the central crop in evaluation, in pixels", paper="not said", source="authors' code"
    )
    eval_crop_mode: CropMode = option(
        "center",
        "timm's: center keeps the proportions and cuts, squash makes the image square, border fills it up to a square "
        "with the mean colour",
        source="torchvision",
    )
    eval_interpolation: Interpolation = option(
        "bilinear", "of the resize in evaluation, antialiased", source="torchvision"
    )
    eval_corner: Corner = option(
        "nearest",
        "where the evaluation's crop begins if that is between two pixels: nearest as in torchvision and timm, or down "
        "as in transformers",
        source="torchvision",
    )

    def __post_init__(self) -> None:
        require_choices("views", self)
        require(self.global_views >= 1, "views.global_views must be at least 1")
        require(self.local_views >= 0, "views.local_views must not be negative")
        for name in ("global_size", "local_size", "eval_resize", "eval_crop"):
            require(getattr(self, name) >= 8, f"views.{name} must be at least 8 pixels")
        require(self.eval_crop <= self.eval_resize, "views.eval_crop must not exceed views.eval_resize")
        for name in ("global_scale", "local_scale"):
            low, high = getattr(self, name)
            require(0 < low <= high <= 1, f"views.{name} must be LOW,HIGH with 0 < LOW <= HIGH <= 1")
        require(0 < self.ratio[0] <= self.ratio[1], "views.ratio must be LOW,HIGH with 0 < LOW <= HIGH")
        low, high = self.local_scale[0], self.global_scale[1]
        require(
            self.scale_end is None or (low <= self.scale_end <= high and low <= self.global_scale[0]),
            "the way from the low end of views.global_scale to views.scale_end must not leave "
            f"{low:g} to {high:g}, the low end of views.local_scale and the high end of views.global_scale",
        )
        for name in ("flip", "jitter", "grey", "blur_local"):
            require(0 <= getattr(self, name) <= 1, f"views.{name} is a probability: between 0 and 1")
        for name in ("blur", "solarize"):
            require(all(0 <= p <= 1 for p in getattr(self, name)), f"views.{name} holds probabilities: 0 to 1")
        for name in ("brightness", "contrast", "saturation"):
            require(0 <= getattr(self, name) <= 1, f"views.{name} must lie between 0 and 1")
        require(0 <= self.hue <= 0.5, "views.hue must lie between 0 and 0.5")
        require(self.blur_kernel % 2 == 1 and self.blur_kernel > 0, "views.blur_kernel must be odd and positive")
        require(0 < self.blur_sigma[0] <= self.blur_sigma[1], "views.blur_sigma must be LOW,HIGH with 0 < LOW <= HIGH")
        require(all(deviation > 0 for deviation in self.std), "views.std holds standard deviations: above 0")

    def scales(self, epoch: int, epochs: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """Ranges of the global and the local views' share of the image's area in one epoch."""
        if self.scale_end is None:
            return self.global_scale, self.local_scale
        start, progress = self.global_scale[0], epoch / max(1, epochs - 1)
        moved = self.scale_end + (start - self.scale_end) * (1 + math.cos(math.pi * progress)) / 2
        return (moved, self.global_scale[1]), (self.local_scale[0], moved)

    @property
    def preprocessing(self) -> Preprocessing:
        """How images are prepared for evaluating the network; their set's record of pixels holds for stored values."""
        return Preprocessing(
            self.eval_resize,
            self.eval_crop,
            self.mean,
            self.std,
            self.eval_interpolation,
            self.eval_crop_mode,
            self.eval_corner,
            Pixels(len(self.mean) or RGB),
        )


@dataclass(frozen=True, kw_only=True)
class OptimSettings:
    """Optimizer and schedules; every schedule is a function of the step."""

    optimizer: Literal["sgd", "adamw"] = option("sgd", "optimizer", paper="SGD; ViT: AdamW (DINO)")
    epochs: int = option(400, "passes over the images", paper="100, 200, 400; ViT: 100, 300, 800")
    batch: int = option(1024, "images per step, all processes together", paper="1,024 (ablated 256, 512)")
    base_lr: float = option(0.15, "learning rate per 256 images of the batch", paper="0.15; ViT: 0.0005 (DINO)")
    warmup_epochs: float = option(10.0, "epochs of linear warm-up, then a cosine", paper="10")
    restarts: tuple[int, ...] = option(
        (), "epochs after which all schedules begin anew, with the warm-up; `--extend` adds one", source="SGDR"
    )
    lr_floor: float = option(
        0.0, "the cosine's last value, as a share of the peak", paper="not said (authors' code: 1e-4)", source="settled"
    )
    momentum: float = option(0.9, "SGD's momentum, AdamW's first beta", paper="0.9")
    weight_decay: float = option(1e-4, "first value; none on biases and 1-D parameters", paper="1e-4; ViT: 0.04")
    weight_decay_end: float = option(1e-4, "last value, reached on a cosine", paper="1e-4; ViT: 0.4")
    centroid_decay: float = option(
        10.0, "the centroids' weight decay as a multiple of the others', first value", paper="10: 1e-3 (ablated 1)"
    )
    centroid_decay_end: float = option(1.0, "last value of that multiple, reached on a cosine", paper="1: 1e-4")
    clip: float | None = option(
        None, "largest gradient norm of each parameter tensor", paper="none; ViT: 3.0 (DINO)", source="DINO"
    )
    frozen_centroid_epochs: int = option(
        0, "epochs at the start with fixed centroids", paper="not said; ViT: DINO's", source="settled: none"
    )

    def __post_init__(self) -> None:
        require_choices("optim", self)
        require(self.epochs >= 1, "optim.epochs must be at least 1")
        require(self.batch >= 1, "optim.batch must be at least 1")
        require(self.base_lr > 0, "optim.base_lr must be above 0")
        require(self.clip is None or self.clip > 0, "optim.clip must be above 0, or none")
        require(0 <= self.momentum < 1, "optim.momentum must lie in [0, 1)")
        require(
            all(before < after for before, after in itertools.pairwise(self.marks)),
            f"optim.restarts are epochs between 0 and optim.epochs ({self.epochs}), each after the one before",
        )
        decays = ("weight_decay", "weight_decay_end", "centroid_decay", "centroid_decay_end")
        for name in ("warmup_epochs", "lr_floor", "frozen_centroid_epochs", *decays):
            require(getattr(self, name) >= 0, f"optim.{name} must not be negative")

    @property
    def marks(self) -> tuple[int, ...]:
        """Epochs at which the schedules begin, begin anew, and end."""
        return (0, *self.restarts, self.epochs)


def cycle(epoch: float, marks: Sequence[int]) -> tuple[int, int]:
    """The two marks between which a run is after so many epochs; after the last one, those that end it."""
    return next((two for two in itertools.pairwise(marks) if epoch < two[1]), (marks[-2], marks[-1]))


@dataclass(frozen=True, kw_only=True)
class AdaptSettings:
    """Continuing from a trained backbone (`init`) without losing what it knows. By default all of it is off."""

    warmup_epochs: float = option(
        0.0, "epochs at the start in which heads and centroids learn and the backbone is frozen", source="ours"
    )
    release_epochs: float = option(
        0.0,
        "epochs after these that release the backbone's layers, from the last to the first",
        source="ours",
    )
    layer_decay: float = option(
        1.0, "factor on the learning rate from each layer of the backbone to the one before it", source="BEiT: 0.65"
    )
    anchor: float = option(
        0.0, "weight of 1 - cosine between the student's features and those of the start, first value", source="ours"
    )
    anchor_end: float = option(0.0, "last value of that weight, reached on a cosine", source="ours")
    frozen_statistics: bool = option(
        False,
        "keep the backbone's BatchNorm statistics as they were; else they are those of method.teacher_statistics",
        source="ours",
    )
    lora_rank: int = option(
        0,
        "rank of updates of a ViT's linear layers (LoRA) that learn instead of its weights; 0: none",
        source="ours",
    )
    patience: int | None = option(
        None, "measurements after the warm-up without a new best one that end the run; none: all epochs", source="ours"
    )

    @property
    def active(self) -> bool:
        """Whether anything of it is on."""
        return self != AdaptSettings()

    @property
    def anchored(self) -> bool:
        """Whether there is an anchor at any time."""
        return self.anchor > 0 or self.anchor_end > 0

    def __post_init__(self) -> None:
        for name in ("warmup_epochs", "release_epochs", "anchor", "anchor_end", "lora_rank"):
            require(getattr(self, name) >= 0, f"adapt.{name} must not be negative")
        require(0 < self.layer_decay <= 1, "adapt.layer_decay must lie above 0 and not above 1")
        require(self.patience is None or self.patience >= 1, "adapt.patience must be at least 1, or none")


@dataclass(frozen=True, kw_only=True)
class MonitorSettings:
    """Measurements during the run, on frozen features of the teacher."""

    every_epochs: int = option(10, "epochs between measurements; the last epoch is always measured", source="ours")
    images: int = option(10_000, "training images used at most, the same ones every time", source="ours")
    share: float | None = option(
        None,
        "images measured in all, as a share of those trained on in all epochs: short runs of many images use fewer "
        "than monitor.images, at least 1,000; none: always as many",
        source="ours",
    )
    k: int = option(20, "neighbours of the k-NN figures and of the agreement of neighbours", source="DINO")
    group: int | None = option(
        None,
        "where images of one folder vote for each other: they are divided at random into groups of about so many, and "
        "each votes in its own, where few others are of its series; none: all vote",
        source="ours",
    )
    data: str | None = option(
        None,
        "images to measure and to choose the best checkpoint by: k-NN of DIR/val or DIR/test by DIR/train, of DIR "
        "with each left out, or without labels retrieval",
        source="ours",
    )
    protocol: str | None = option(
        None,
        "what `excb-eval watch --protocol` measures of every checkpoint on the images of monitor.data, in a process "
        "of its own beside the run: linear, or 'linear --protocol logreg'",
        source="ours",
    )
    source: str | None = option(
        None, "images of what the checkpoint of init knew, measured in the same way: is it forgotten?", source="ours"
    )
    wandb: str | None = option(None, "project of Weights & Biases to log to as well", source="ours")

    def __post_init__(self) -> None:
        require(self.every_epochs >= 1, "monitor.every_epochs must be at least 1")
        require(self.images >= 2, "monitor.images must be at least 2")
        require(self.share is None or self.share > 0, "monitor.share must be above 0, or none")
        require(self.k >= 1, "monitor.k must be at least 1")
        require(self.group is None or self.group >= 10, "monitor.group must be at least 10, or none")
        require(
            self.protocol is None or self.data is not None,
            "monitor.protocol needs labelled images: name them with monitor.data",
        )
        for name in ("data", "source", "protocol", "wandb"):
            require(getattr(self, name) != "", f"monitor.{name} is empty: give a value (is a shell variable unset?)")


@dataclass(frozen=True, kw_only=True)
class EfficiencySettings:
    """Options that change speed, never what is computed."""

    device: str = option("auto", "cpu, cuda, or auto: cuda where there is one", source="ours")
    precision: Literal["fp32", "bf16", "fp16", "fp64", "auto"] = option(
        "fp32",
        "of forward and backward passes; similarities stay fp32, fp16 scales its loss, fp64 is for exact comparisons; "
        "auto, chosen when a run starts: bf16 on GPUs of compute capability 8.0 or newer, and on CPUs that have it for "
        "networks that are faster in it, else fp32",
        paper="not stated (authors' code: fp16)",
        source="ours",
    )
    tf32: bool = option(
        True, "multiply what is float32 in TF32 on GPUs (10 bits of mantissa); similarities never", source="ours"
    )
    cudnn_benchmark: bool = option(
        False, "cuDNN measures its algorithms on a GPU: faster, but runs differ in the last bits", source="ours"
    )
    accumulate: int = option(
        1, "micro-batches per step: less memory, the same step but for BatchNorm's statistics", source="ours"
    )
    checkpointing: bool = option(False, "recompute blocks in the backward pass: less memory, more time", source="ours")
    compile: bool = option(False, "compile the backbones (torch.compile)", source="ours")
    objective: str = option(
        AUTO,
        "how the loss is computed: plain (the equations, whole matrices of rows x clusters), chunked (in tiles) or "
        "triton (kernels for CUDA, fp64 excepted); auto: triton where it can run, else chunked",
        source="ours",
        choices=lambda: (AUTO, *BACKENDS),
    )
    channels_last: bool = option(True, "memory layout of convolutional networks", source="ours")
    fused: bool = option(
        True,
        "one kernel for the optimizer's update of all tensors (without it, steps wait for the norm), and on GPUs our "
        "kernels for the augmentation",
        source="ours",
    )
    compression: Literal["none", "bf16", "fp16", "powersgd"] = option(
        "none",
        "how gradients travel between processes: whole, rounded, or as matrices of rank 4 from step 1,000 on "
        "(powersgd, which cannot resume: what it leaves out of a step is in no checkpoint)",
        source="ours",
    )
    static_graph: bool = option(
        False, "several processes: every step uses the same parameters, which DDP learns in the first", source="ours"
    )
    bucket_mb: float = option(25.0, "MiB of gradients that are sent together, during the backward pass", source="ours")
    workers: int = option(-1, "processes that read images; -1: one per core of this machine, 8 at most", source="ours")
    prefetch: int = option(2, "batches that each of these processes reads ahead", source="ours")
    decoder: Literal["auto", "simplejpeg", "torchvision", "pillow", "nvjpeg"] = option(
        "auto",
        "decoder of JPEGs, from the fastest to the slowest; auto: the first that is installed, of these of the same "
        "pixels; nvjpeg: the GPU decodes and crops, and pixels differ a little",
        source="ours",
    )
    scaled_decoding: bool = option(
        False, "decode JPEGs much larger than every crop smaller: less time, pixels differ a little", source="ours"
    )

    def __post_init__(self) -> None:
        require(
            self.objective != "flex",
            "efficiency.objective=flex was removed: set efficiency.objective=auto (a run may change it and resume)",
        )
        require_choices("efficiency", self)
        taken = BACKENDS[self.objective].precisions if self.objective != AUTO else ()
        require(
            not taken or self.precision in (*taken, "auto"),
            f"efficiency.objective={self.objective} needs efficiency.precision={' or '.join(taken)}",
        )
        require(
            self.compression != "powersgd" or self.precision != "fp16",
            "efficiency.compression=powersgd would keep the overflows of efficiency.precision=fp16 in its error "
            "feedback: use efficiency.precision=bf16, or efficiency.compression=fp16",
        )
        require(
            not (self.static_graph and self.compile),
            "efficiency.static_graph and efficiency.compile exclude each other: a compiled network is split at DDP's "
            "buckets, which a static graph does not have in its first step",
        )
        require(
            not self.static_graph or self.accumulate == 1,
            "efficiency.static_graph needs a backward pass that averages gradients in every part of a step: set "
            "efficiency.accumulate=1",
        )
        require(
            not (self.scaled_decoding and self.decoder == "nvjpeg"),
            "efficiency.decoder=nvjpeg decodes images whole: set efficiency.scaled_decoding=false",
        )
        require(self.bucket_mb > 0, "efficiency.bucket_mb must be above 0")
        require(self.accumulate >= 1, "efficiency.accumulate must be at least 1")
        require(self.workers >= -1, "efficiency.workers must be -1 (automatic), 0 or more")
        require(self.prefetch >= 1, "efficiency.prefetch must be at least 1")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The run's seed, and when it writes what."""

    seed: int = option(0, "names every random choice of the run", source="ours")
    save_epochs: int = option(1, "epochs between checkpoints", source="ours")
    save_steps: int | None = option(None, "steps between checkpoints, besides those at epochs", source="ours")
    keep: int = option(3, "newest checkpoints kept, besides the best one", source="ours")
    log_steps: int = option(10, "steps between lines of metrics.jsonl", source="ours")

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**63, "run.seed must lie between 0 and 2^63 - 1")
        require(self.save_epochs >= 1, "run.save_epochs must be at least 1")
        require(self.save_steps is None or self.save_steps >= 1, "run.save_steps must be at least 1, or none")
        require(self.keep >= 1, "run.keep must be at least 1")
        require(self.log_steps >= 1, "run.log_steps must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that defines a pretraining run besides the images."""

    name: str
    init: str | None = None  # a loadable backbone or full checkpoint to start from
    # Fields that the checkpoint of `init` decides, as "section.field", until `initialise.adopted` has settled them.
    adopts: tuple[str, ...] = ()
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    method: MethodSettings = field(default_factory=MethodSettings)
    views: ViewSettings = field(default_factory=ViewSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    adapt: AdaptSettings = field(default_factory=AdaptSettings)
    distil: DistilSettings = field(default_factory=DistilSettings)
    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    efficiency: EfficiencySettings = field(default_factory=EfficiencySettings)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        """Raise UserError for sections that exclude each other, whatever the images and the machine."""
        batch, accumulate, method, views = self.optim.batch, self.efficiency.accumulate, self.method, self.views
        require(
            batch % accumulate == 0,
            f"efficiency.accumulate={accumulate} does not divide a batch of {plural(batch, 'image')}: set optim.batch "
            f"to a multiple of {accumulate}",
        )
        require(
            accumulate == 1 or method.sizes_updated != "before_balancing",
            "method.sizes_updated=before_balancing needs the whole batch at once: set efficiency.accumulate=1",
        )
        require(
            accumulate == 1 or not method.contrast,
            "method.contrast needs the whole batch at once: set efficiency.accumulate=1",
        )
        require(
            accumulate == 1 or not BALANCERS[method.balancing].whole_batch,
            f"method.balancing={method.balancing} balances the whole batch at once: set efficiency.accumulate=1",
        )
        require(
            accumulate == 1 or not self.distil.whole_batch,
            "distil.similarities needs the whole batch at once: set efficiency.accumulate=1",
        )
        require(
            method.active or self.distil.active,
            "method.clustering=false leaves no loss: set method.contrast=1 or method.regression=1, or learn from a "
            "teacher (`excb-pretrain distil NAME`)",
        )
        several = views.global_views + views.local_views >= 2
        require(several or not method.active, "a run needs two views: raise views.global_views")
        require(
            several or self.distil.teacher_sees != "other_view",
            "distil.teacher_sees=other_view needs two views: raise views.global_views",
        )
        require(
            not method.active or views.global_views > 1 or method.predictor or method.projector_on_local,
            "the loss has no pair of views: views.global_views=1 needs method.predictor=true or "
            "method.projector_on_local=true",
        )
        if not self.adopts:  # else the checkpoint says which network it is
            self._check_channels()

    def _check_channels(self) -> None:
        channels, views = self.channels, self.views
        for name in ("mean", "std"):
            count = len(getattr(views, name))
            require(
                count in (0, channels),
                f"views.{name} has {plural(count, 'number')} for images of {plural(channels, 'channel')}: give "
                f"{channels}, or none to have them measured",
            )
        colours = [] if channels == RGB else [name for name in COLOURS if getattr(views, name)]
        require(
            not colours,
            f"views.{' and views.'.join(colours)} are operations on colours, which images of "
            f"{plural(channels, 'channel')} have not: set them to 0, or name the channels by "
            f"data.channels={channels}, which switches them off",
        )

    @property
    def channels(self) -> int:
        """C, of the images that the network takes."""
        return self.model.architecture.channels

    @property
    def starts_centroids(self) -> bool:
        """Whether k-means starts the centroids: in a run that takes none from the checkpoint of `init`."""
        return self.method.centroid_init == "kmeans" and (self.init is None or self.adapt.active)

    @property
    def measures_start(self) -> bool:
        """Whether the network is measured before training, to be compared with what becomes of it."""
        monitor = self.monitor
        return self.init is not None and (self.adapt.active or bool(monitor.data or monitor.source))

    def change(self, **sections: dict[str, Any]) -> "Recipe":
        """A copy with other values: `recipe.change(optim={"epochs": 100})`."""
        return replace(self, **{name: replace(getattr(self, name), **values) for name, values in sections.items()})

    def steps_per_epoch(self, images: int) -> int:
        """Number of whole batches in `images` images.

        Raises:
            UserError: the batch is larger than the set.
        """
        batch = self.optim.batch
        require(
            batch <= images,
            f"the batch of {batch} is larger than the set of {plural(images, 'image')}: lower optim.batch, "
            f"such as optim.batch={2 ** max(1, (images // 4).bit_length())}, or add images: pretraining needs many",
        )
        return images // batch

    def micro_batch(self, processes: int) -> int:
        """Images of a micro-batch of one process.

        Raises:
            UserError: this number of processes cannot train by this recipe.
        """
        batch, accumulate = self.optim.batch, self.efficiency.accumulate
        parts = processes * accumulate
        require(
            batch % parts == 0,
            f"a batch of {plural(batch, 'image')} cannot be shared by {plural(processes, 'process', 'processes')} "
            f"with {accumulate} micro-batches each: set optim.batch to a multiple of {parts}",
        )
        return batch // parts

    def kmeans_steps(self, images: int) -> int:
        """Number of batches whose views k-means starts the centroids from, of a set of `images` images.

        Raises:
            UserError: they hold fewer views than there are clusters.
        """
        batch, method = self.optim.batch, self.method
        steps = min(self.steps_per_epoch(images), math.ceil(method.kmeans_samples / batch))
        require(
            method.clusters <= steps * batch,
            "k-means needs at least as many samples as clusters, but there are "
            f"{plural(steps * batch, 'training view')} for {plural(method.clusters, 'cluster')}: lower "
            f"method.clusters to at most {steps * batch}, raise method.kmeans_samples, or set "
            "method.centroid_init=random",
        )
        return steps

    def all_values(self) -> dict[str, Any]:
        """Plain values of all fields, by section (tuples become lists)."""
        values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        del values["adopts"]  # how values came about, as whether a command line named them
        return values

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON and checkpoints; what older files have not is left out while it has its usual value."""
        values = self.all_values()
        if self.data == DataSettings():
            del values["data"]
        elif self.data.colours == DataSettings().colours:
            del values["data"]["colours"]
        views = ViewSettings()
        for name in _ADDED_VIEWS:
            if getattr(self.views, name) == getattr(views, name):
                del values["views"][name]
        if not self.optim.restarts:
            del values["optim"]["restarts"]
        return values
