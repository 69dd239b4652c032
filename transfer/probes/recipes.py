"""Linear protocols of the field by name: what each paper's authors ran, as plain values."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from excb.errors import UserError, nearest_name, require

# With fewer train images, 50 heads learn too little in 30 epochs, and a tenth of the images is too few to choose by.
FEW_LABELS = 1000
FOLDS = 5  # of cross-validation on few labels
FEW_STRENGTHS = (1e-3, 1e-2, 0.1, 1.0)  # values of C that it tries, on features of mean square 1


@dataclass(frozen=True, kw_only=True)
class LinearProtocol:
    """How heads are trained on a frozen backbone: SGD with momentum 0.9, or AdamW, on mean cross-entropy."""

    source: str  # who runs it so
    epochs: int  # passes over the train images
    batch: int  # images per step, all ranks together
    lr: tuple[float, ...]  # rates to try, for `lr_batch` images per step: the rate used is lr x batch / lr_batch
    lr_batch: int = 256  # see `lr`
    weight_decay: tuple[float, ...] = (0.0,)  # each is tried with each learning rate
    # of the rates, epoch by epoch: cosine to 0, or x 0.1 at 60 % and at 80 % of the epochs
    schedule: Literal["cosine", "step"] = "cosine"
    rule: Literal["sgd", "lars", "adamw"] = "sgd"  # "sgd", "lars", or "adamw" of attentive probes
    # what the heads see: "pooled" as the backbone returns them, "last4_cls", or the last map's "patches", which
    # attentive probes take
    features: Literal["pooled", "last4_cls", "patches"] = "pooled"
    batchnorm: bool = False  # of attentive probes: BatchNorm without scale and shift before the classifier
    augmented: bool = True  # whether the backbone sees new crops every epoch; otherwise features are made once and kept

    def settings(self) -> dict[str, Any]:
        """All of it, for results and fingerprints; without BatchNorm as before there was any."""
        values = asdict(self)
        if not self.batchnorm:
            del values["batchnorm"]
        return values

    @property
    def lr_factor(self) -> float:
        """The factor of every listed learning rate."""
        return self.batch / self.lr_batch

    def schedule_factor(self, epoch: int) -> float:
        """The schedule's factor of every learning rate in an epoch, counted from 0."""
        if self.schedule == "step":
            return 0.1 ** sum(10 * epoch >= tenths * self.epochs for tenths in (6, 8))
        return (1 + math.cos(math.pi * epoch / self.epochs)) / 2


PROTOCOLS = {
    "resnet": LinearProtocol(
        source="ExCB and SwAV, ResNet-50; weight decay 0 as ExCB's code forces it (its configuration says 1e-6)",
        epochs=100,
        batch=256,
        lr=(0.3,),
    ),
    "vit": LinearProtocol(
        source="DINO's features and training; learning rates of ExCB's 58 heads, which are not scaled at batch 1024",
        epochs=100,
        batch=1024,
        lr=tuple(round(0.0005 * number, 4) for number in range(1, 59)),
        lr_batch=1024,
        features="last4_cls",
    ),
    "moco": LinearProtocol(source="MoCo v1 and v2, ResNet-50", epochs=100, batch=256, lr=(30.0,), schedule="step"),
    "simsiam": LinearProtocol(source="SimSiam, ResNet-50", epochs=90, batch=4096, lr=(0.1,), rule="lars"),
    "fast": LinearProtocol(
        source="this package: features made once and scaled to mean square 1, a grid of heads in one pass",
        epochs=30,
        batch=256,
        lr=(0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 1.0),
        weight_decay=(0.0, 1e-4, 1e-3, 3e-3, 1e-2),
        augmented=False,
    ),
    "attentive": LinearProtocol(
        source="this package: CAPI's cross-attention with a learned query, in the form of efficient probing",
        epochs=30,
        batch=128,
        # On grocery128's held-out train images 0.01 and 0.03 were best, and CAPI tries up to 0.01 for longer training.
        lr=(0.001, 0.003, 0.01, 0.03),
        lr_batch=128,
        weight_decay=(0.0005,),
        rule="adamw",
        features="patches",
        augmented=False,
    ),
}
PROTOCOLS["attentive-bn"] = replace(
    PROTOCOLS["attentive"],
    source="as attentive, with the BatchNorm of efficient probing's code between pooling and classifier",
    batchnorm=True,
)


def protocol_of_name(
    name: str,
    *,
    epochs: int | None = None,
    batch: int | None = None,
    lr: Sequence[float] | None = None,
    weight_decay: Sequence[float] | None = None,
) -> LinearProtocol:
    """A protocol by name, with the settings that the user chose otherwise.

    Raises:
        UserError: there is no such protocol, or a setting is out of range.
    """
    if name not in PROTOCOLS:
        known = ", ".join(PROTOCOLS)
        raise UserError(
            f"no linear protocol is called '{name}'{nearest_name(name, PROTOCOLS)} (known: {known}, logreg, logreg-cv)"
        )
    require(epochs is None or epochs >= 1, "--epochs must be at least 1")
    require(batch is None or batch >= 1, "the batch of the heads must be at least 1")
    require(lr is None or all(0 < rate < math.inf for rate in lr), "--lr must be above 0, such as 0.3")
    require(
        weight_decay is None or all(0 <= w < math.inf for w in weight_decay), "--wd must be 0 or above, such as 1e-6"
    )
    require(
        all(values is None or values for values in (lr, weight_decay)), "--lr and --wd need at least one value each"
    )
    changes = {
        "epochs": epochs,
        "batch": batch,
        "lr": None if lr is None else tuple(dict.fromkeys(lr)),  # a repeat would be the same head once more
        "weight_decay": None if weight_decay is None else tuple(dict.fromkeys(weight_decay)),
    }
    return replace(PROTOCOLS[name], **{field: value for field, value in changes.items() if value is not None})  # type: ignore[arg-type]
