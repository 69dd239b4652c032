"""Options that several evaluations share, as dataclasses; each protocol's own extend them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from excb.errors import require
from excb.options import REQUIRED, option

# References that no network makes: options that ask for them, and what these evaluate.
BASELINES = {
    "pixels": "raw pixels",
    "histogram": "colour histograms",
    "patches": "whitened patches with k-means, fitted on the train images",
}
# The names of references in results, by the options that ask for them.
REFERENCES = {"untrained": "untrained", "pixels": "pixels", "histogram": "colour_histogram", "patches": "patches"}
AGAINST = "against"  # the option that names further checkpoints; in results they have their own names
# Options that change no figure, but only where and how fast it is computed.
WITHOUT_EFFECT = frozenset(("device", "batch_size", "workers", "cache", "no_cache"))
ALIKE = "is of several checkpoints, each with its own --resize or --crop"  # --own-preprocessing
CKPT = "run folder, checkpoint file, exported folder, name of `excb-zoo list`, timm:NAME or untrained:NAME"
_MACHINE, _IMAGES, _PREPROCESSING = "machine", "images", "preprocessing"


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Where a pass over images runs, and what it caches."""

    device: str = option("auto", "cpu, cuda or auto (default)", metavar="NAME", group=_MACHINE)
    feature_precision: Literal["fp32", "bf16"] = option(
        "fp32", "precision of the frozen network; bf16 is autocast, for GPUs (default: fp32)", group=_MACHINE
    )
    batch_size: int | Literal["auto"] = option(
        64, "images per batch, or auto (default: 64)", metavar="B", group=_MACHINE
    )
    workers: int | None = option(None, "processes that read images", metavar="N", group=_MACHINE)
    cache: Path | None = option(
        None, "folder for features (default: $EXCB_CACHE, else ~/.cache/excb)", metavar="DIR", group=_MACHINE
    )
    no_cache: bool = option(False, "keep no features", group=_MACHINE)

    @property
    def features_folder(self) -> Path | None:
        """The folder where features are kept; None keeps none."""
        from excb.remote.home import cache_root

        require(self.cache is None or not self.no_cache, "--cache keeps features, and --no-cache none: leave one out")
        return None if self.no_cache else self.cache or cache_root()


@dataclass(frozen=True, kw_only=True)
class NetworkOption:
    """Which network of a run."""

    network: Literal["teacher", "student"] = option("teacher", "default: teacher", group="checkpoint and images")


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(NetworkOption):
    """A checkpoint, or a network that is evaluated as it is."""

    ckpt: Any = option(REQUIRED, CKPT, metavar="PATH", group="checkpoint and images")


@dataclass(frozen=True, kw_only=True)
class RangeOption:
    """Which stored values are black and white."""

    range: str | None = option(
        None,
        "stored values that become black and white, such as 0..4095, of images of more than 8 bits (default: the "
        "checkpoint's, else measured on the train images)",
        metavar="LOW..HIGH",
        group=_PREPROCESSING,
    )


@dataclass(frozen=True, kw_only=True)
class SizeOptions(RangeOption):
    """Sizes and values of inputs, instead of those that the checkpoint has."""

    resize: int | None = option(
        None, "shorter side (default: the checkpoint's)", metavar="PIXELS", group=_PREPROCESSING
    )
    crop: int | None = option(
        None, "central square (default: the checkpoint's)", metavar="PIXELS", group=_PREPROCESSING
    )
    channels: int | None = option(
        None, "channels of the images (default: as many as they have)", metavar="N", group=_PREPROCESSING
    )


# The order of base classes is that of groups in `--help`, from the last to the first.
@dataclass(frozen=True, kw_only=True)
class PassOptions(MachineOptions, SizeOptions, CheckpointOptions):
    """A pass of images through a frozen backbone."""


@dataclass(frozen=True, kw_only=True)
class LabelledImageOptions:
    """Labelled train and test images."""

    data: str | None = option(
        None,
        "a folder or URL with train/ and test/ (or val/); a CSV of paths, labels and splits; torchvision:NAME; "
        "hf:ID[,label=COLUMN]",
        metavar="SOURCE",
        group=_IMAGES,
    )
    train: str | None = option(
        None,
        "labelled images: one sub-folder per class, a CSV of paths and labels, or tar shards such as 'DIR/*.tar'",
        metavar="DIR",
        group=_IMAGES,
    )
    test: str | None = option(None, "the same classes, other images", metavar="DIR", group=_IMAGES)
    data_root: Path | None = option(None, "folder with torchvision's data sets", metavar="DIR", group=_IMAGES)
    rename: Mapping[str, str] = option(
        (), "a class that has another name in the train set; repeatable", metavar="TEST=TRAIN", group=_IMAGES
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "rename", dict(self.rename))  # a dataclass takes no dictionary as a default


@dataclass(frozen=True, kw_only=True)
class LabelledOptions(MachineOptions, SizeOptions, LabelledImageOptions, CheckpointOptions):
    """A pass of labelled images through a frozen backbone."""


@dataclass(frozen=True, kw_only=True)
class UntrainedOption:
    """The reference that takes as long as the evaluation itself."""

    untrained: bool = option(False, "also evaluate the same network untrained, as a reference")


@dataclass(frozen=True, kw_only=True)
class PixelsOption:
    """The reference of protocols that pixels can serve without a row of features an image."""

    pixels: bool = option(False, f"also evaluate {BASELINES['pixels']}, as a reference")


@dataclass(frozen=True, kw_only=True)
class BaselineOptions(PixelsOption, UntrainedOption):
    """References of protocols on one row of features per image."""

    histogram: bool = option(False, f"also evaluate {BASELINES['histogram']}, as a reference")
    patches: bool = option(False, f"also evaluate {BASELINES['patches']}, as a reference")
    against: tuple[str, ...] = option(
        (), "also evaluate these frozen checkpoints, such as mobilenetv2, as references", metavar="CKPT"
    )


@dataclass(frozen=True, kw_only=True)
class OwnSetOptions(PixelsOption, UntrainedOption, MachineOptions, RangeOption, CheckpointOptions):
    """Of protocols that open a set of their own and resize its images by themselves."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions(UntrainedOption, LabelledOptions):
    """Of protocols on labelled images."""


@dataclass(frozen=True, kw_only=True)
class FrozenOptions(BaselineOptions, TaskOptions):
    """Of protocols on labelled images with one row of features each."""
