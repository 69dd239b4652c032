"""Options of the linear protocols, and of their part in `excb-eval all`."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from excb.errors import UserError, require
from excb.options import option

from ..options import BASELINES
from ..probes.recipes import FEW_LABELS, FEW_STRENGTHS, PROTOCOLS, LinearProtocol, protocol_of_name
from ..protocol import ProtocolOptions

# Beside `PROTOCOLS`: regressions are not heads that SGD trains.
LOGREG, CROSS_VALIDATED = "logreg", "logreg-cv"
FAST = "fast"
AUTO = "auto"  # by the number of labels
STRENGTHS_OF = {LOGREG: (1.0,), CROSS_VALIDATED: FEW_STRENGTHS}  # values of C, where the user names none


@dataclass(frozen=True, kw_only=True)
class LinearOptions(ProtocolOptions):
    """A protocol, settings to use instead of its own, and how one of several heads is chosen."""

    protocol: str = option(
        AUTO,
        f"resnet, vit, moco, simsiam, fast, logreg, {CROSS_VALIDATED}, attentive, attentive-bn (default: "
        f"{CROSS_VALIDATED} below {FEW_LABELS:,} train images, else fast)",
        metavar="NAME",
    )
    epochs: int | None = option(None, "instead of the protocol's", metavar="N")
    train_batch: int | None = option(None, "images per step, instead of the protocol's", metavar="B")
    lr: tuple[float, ...] | None = option(None, "learning rates to try, instead of the protocol's", metavar="LR")
    wd: tuple[float, ...] | None = option(None, "weight decays to try, instead of the protocol's", metavar="WD")
    C: tuple[float, ...] | None = option(None, "inverse penalties to try, for logreg", metavar="C")
    select: Literal["holdout", "test"] = option(
        "holdout", "choose a head on a held-out tenth of train (default), or on the test images, as authors do"
    )
    seed: int = option(0, "default: 0", metavar="S")
    state: Path | None = option(
        None, "save heads that see new crops here after every epoch, and resume from it", metavar="FILE"
    )

    @property
    def augmented(self) -> bool:
        """Whether heads see new crops of the train images every epoch; otherwise features are made once."""
        return self.protocol in PROTOCOLS and PROTOCOLS[self.protocol].augmented

    def for_labels(self, images: int | None) -> "LinearOptions":
        """These options with the protocol that suits so many train images, where the user names none.

        Settings that only one kind of head has choose that kind. None stands for images with a set of labels each.
        """
        if self.protocol != AUTO:
            return self
        if images is None or self.C is not None:
            return replace(self, protocol=LOGREG)
        of_heads = self.given("epochs", "train_batch", "lr", "wd")
        return replace(self, protocol=FAST if of_heads or images >= FEW_LABELS else CROSS_VALIDATED)

    def plan(self) -> LinearProtocol | tuple[float, ...]:
        """The heads to train; of regressions the values of C, each once.

        Raises:
            UserError: there is no such protocol, or a setting is out of range or not of this protocol.
        """
        if self.protocol == AUTO:
            return self.for_labels(0).plan()
        if self.protocol not in (LOGREG, CROSS_VALIDATED):
            require(self.C is None, f"--C is of logreg: {self.protocol} takes --lr and --wd")
            return protocol_of_name(
                self.protocol, epochs=self.epochs, batch=self.train_batch, lr=self.lr, weight_decay=self.wd
            )
        wrong = self.given("epochs", "train_batch", "lr", "wd")
        require(
            not wrong, f"{self.protocol} has no {', '.join(wrong)}: it takes --C, the inverse strength of its penalty"
        )
        named = STRENGTHS_OF[self.protocol] if self.C is None else self.C
        tried = tuple(dict.fromkeys(named))  # a repeat would be the same model once more
        require(len(tried) > 0 and all(0 < each < math.inf for each in tried), "--C must be above 0, such as 1")
        return tried

    def refuse_seed(self) -> None:
        """Raise UserError where --seed is given, where held-out images choose no C; all ranks call this."""
        if self.given("seed"):
            raise UserError.on_all_ranks(
                f"--seed draws the images that choose C, and here none do ({self.protocol}): leave it out"
            )

    def check(self, shared: Any) -> None:
        """Raise UserError as `plan`, where --state has no use, or where a reference has no features of this kind."""
        plan = self.plan()
        reads = plan.features if isinstance(plan, LinearProtocol) else "pooled"
        asked = [f"--{name}" for name in BASELINES if getattr(shared, name, False)]
        words = "patch tokens" if reads == "patches" else "class tokens"
        require(
            reads == "pooled" or not asked,
            f"--protocol {self.protocol} reads {words}, and {' '.join(asked[:1])} has none: use {FAST}, {LOGREG} or "
            f"{CROSS_VALIDATED}",
        )
        if self.state is not None:
            require(
                self.augmented,
                f"--state keeps heads that see new crops every epoch, and {self.protocol} makes features once: "
                "leave it out",
            )
            require(not self.state.is_dir(), f"--state {self.state} is a folder: name a file in it")


@dataclass(frozen=True, kw_only=True)
class LinearInSuite:
    """The options of `excb-eval all` for linear heads."""

    linear: str = option(AUTO, "protocol of the linear heads (default: by the number of labels)", metavar="NAME")
