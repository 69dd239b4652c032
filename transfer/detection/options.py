"""Options of the detection protocol."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from excb.errors import require
from excb.options import option

from ..options import CheckpointOptions, RangeOption
from ..protocol import ProtocolOptions
from .setup.settings import DetectionSettings, parse_option, settings_for

EngineName = Literal["detectron2", "torchvision"]
_IMAGES, _MACHINE = "images", "machine"


@dataclass(frozen=True, kw_only=True)
class DetectorInputs(RangeOption, CheckpointOptions):
    """A ResNet, and where its detector trains."""

    ckpt: Any = option(
        None,  # `--repair` needs none
        "a ResNet-50, -101 or -152, as for the other protocols",
        metavar="PATH",
        group="checkpoint",
    )
    network: Literal["teacher", "student"] = option("teacher", "default: teacher", group="checkpoint")
    device: str = option("auto", "cpu, cuda or auto (default)", metavar="NAME", group=_MACHINE)
    workers: int | None = option(None, "data loading processes", metavar="N", group=_MACHINE)


@dataclass(frozen=True, kw_only=True)
class DetectionOptions(ProtocolOptions):
    """Annotated images, the detector and its training."""

    data: Path | None = option(
        None, "annotations/instances_{train,val}2017.json, train2017/ and val2017/", metavar="DIR", group=_IMAGES
    )
    train_json: Path | None = option(None, "annotations of the train images", metavar="FILE", group=_IMAGES)
    train_images: Path | None = option(None, "the train images", metavar="DIR", group=_IMAGES)
    val_json: Path | None = option(None, "annotations of the val images", metavar="FILE", group=_IMAGES)
    val_images: Path | None = option(None, "the val images", metavar="DIR", group=_IMAGES)
    repair: Path | None = option(
        None,
        "write clean copies of the annotation files there, say what they change, and evaluate nothing",
        metavar="DIR",
        group=_IMAGES,
    )
    check_all: bool = option(False, "check every image before training, not only a sample", group=_IMAGES)
    schedule: str = option("1x", "1x (default), 2x, smoke (minutes) or overfit (a few images)", metavar="NAME")
    recipe: str = option("ssl", "ssl (default, as in papers on SSL) or stock (Detectron2's)", metavar="NAME")
    engine: EngineName = option("detectron2", "default: detectron2")
    batch: int | None = option(None, "images per step; lr and schedule scale with it (default: 16)", metavar="B")
    overrides: Mapping[str, Any] = option(
        (),
        "any other option; --dry-run lists all",
        metavar="OPTION=VALUE",
        flag="set",
        words={"type": parse_option},
    )
    run: Path | None = option(None, "the run's folder (default: runs/detection-CKPT-SCHEDULE)", metavar="DIR")
    preflight: bool | None = option(
        None,
        "overfit a few images first (default for 1x and 2x)",
        off=("skip-preflight", "start training immediately"),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", dict(self.overrides))  # a dataclass takes no dictionary as a default

    def check(self, shared: Any) -> None:
        """Raise UserError where there is no such schedule, recipe or option, or images are named twice."""
        self.settings()
        needs = shared is not None and shared.ckpt is None and self.repair is None
        require(not needs, "name a checkpoint with --ckpt PATH")
        named = (self.train_json, self.train_images, self.val_json, self.val_images)
        require(
            self.data is None or None in named,
            "--data has no use beside all of --train-json, --train-images, --val-json and --val-images: leave it out",
        )

    def settings(self, colours: Mapping[str, Any] | None = None) -> DetectionSettings:
        """The settings of the run. `colours` are the checkpoint's mean and std, which `overrides` may contradict.

        Raises:
            UserError: as `settings_for`.
        """
        overrides = dict(colours or {}) | dict(self.overrides)
        return settings_for(self.schedule, self.recipe, batch=self.batch, options=overrides)

    @property
    def checks_first(self) -> bool:
        """Whether a new run begins with a preflight."""
        return self.schedule in {"1x", "2x"} if self.preflight is None else self.preflight


@dataclass(frozen=True, kw_only=True)
class DetectionInSuite:
    """The options of `excb-eval all` for detection."""

    coco: Path | None = option(None, "images for detection, in COCO's layout", metavar="DIR")
    schedule: str = option("1x", "schedule of detection (default: 1x)", metavar="NAME")
    engine: EngineName = option("detectron2", "engine of detection")
