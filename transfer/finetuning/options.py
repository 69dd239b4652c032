"""Options of fine-tuning on a share of the labels: 1 % or 10 %, or any."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from excb.errors import require
from excb.options import REQUIRED, option

from ..protocol import ProtocolOptions

# Fields of `training.Settings` by the options that set them.
SETTINGS_BY_OPTION = {
    "epochs": "epochs",
    "train_batch": "batch",
    "backbone_lr": "backbone_lr",
    "head_lr": "head_lr",
    "precision": "precision",
}
_TRAINING = "training"


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(ProtocolOptions):
    """How all weights are trained, and on which images."""

    seeds: tuple[int, ...] = option(
        (0,), "seeds of the trainings to average (default: 0)", metavar="S", group=_TRAINING
    )
    settings: Literal["auto", "paper", "few-labels"] | None = option(
        None,
        "the paper's, or those for few labels (default: auto, the latter below 5,120 images, but for the paper's "
        "shares of ImageNet and where you name a learning rate)",
        group=_TRAINING,
    )
    epochs: int | None = option(None, "default: 50", metavar="N", group=_TRAINING)
    train_batch: int | None = option(
        None, "images per step (default: from the settings: 512, or fewer)", metavar="B", group=_TRAINING
    )
    backbone_lr: float | None = option(None, "instead of the settings'", metavar="LR", group=_TRAINING)
    head_lr: float | None = option(None, "instead of the settings'", metavar="LR", group=_TRAINING)
    precision: Literal["fp32", "bf16"] | None = option(None, "default: fp32", group=_TRAINING)
    split_file: Path | None = option(
        None, "file with the names of the train images to use, one per line", metavar="FILE", group=_TRAINING
    )
    state: Path | None = option(
        None, "keep unfinished trainings here and resume from them", metavar="DIR", group=_TRAINING
    )

    @property
    def changes(self) -> dict[str, Any]:
        """The changes to the settings of the share, by the fields of `training.Settings`."""
        values = {field: getattr(self, name) for name, field in SETTINGS_BY_OPTION.items()}
        return {field: value for field, value in values.items() if value is not None}

    @property
    def choice(self) -> Literal["auto", "paper", "few-labels"]:
        """The settings to start from. Learning rates that a user found are those of a head that starts at random."""
        return self.settings or ("paper" if self.given("backbone_lr", "head_lr") else "auto")

    def check(self, _shared: Any) -> None:
        """Raise UserError unless there are seeds, each once."""
        require(0 < len(self.seeds) == len(set(self.seeds)), "--seeds: name at least one seed, and none twice")
        require(min(self.seeds) >= 0, f"--seeds {min(self.seeds)}: seeds are 0 or more")


@dataclass(frozen=True, kw_only=True)
class SemisupOptions(TrainingOptions):
    """The paper's shares of the labels, and the variant that trains no network."""

    percent: Literal[1, 10] = option(REQUIRED, "percentage of the labels")
    frozen: bool = option(False, "logistic regression on frozen features instead")

    @property
    def fraction(self) -> float:
        """The share of the train images."""
        return self.percent / 100

    @property
    def figure(self) -> str:
        """The name of its figures, without _top1."""
        return f"semisup_{self.percent}pct" + ("_frozen" if self.frozen else "")

    def check(self, shared: Any) -> None:
        """Raise UserError as `TrainingOptions`, or where the frozen variant has no use for an option."""
        super().check(shared)
        if self.frozen:
            useless = self.given(*SETTINGS_BY_OPTION, "settings", "state")
            require(
                not useless,
                f"--frozen fits a logistic regression, which has no {' '.join(useless[:1])}: leave it out",
            )
            require(len(self.seeds) == 1, "the frozen variant has nothing random to average: give one seed")


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(TrainingOptions):
    """Any share of the labels."""

    percent: ClassVar[None] = None
    frozen: ClassVar[bool] = False
    figure: ClassVar[str] = "finetune"

    fraction: float = option(1.0, "fraction of the labels (default: 1)", metavar="F")

    def check(self, shared: Any) -> None:
        """Raise UserError as `TrainingOptions`, or where the share is given twice."""
        super().check(shared)
        require(
            self.split_file is None or not self.given("fraction"),
            "--split-file names the images of the share, so --fraction has no use: leave one out",
        )


@dataclass(frozen=True, kw_only=True)
class SemisupInSuite:
    """The options of `excb-eval all` for fine-tuning."""

    seeds: tuple[int, ...] = option((0,), "seeds of fine-tuning (default: 0)", metavar="S")
