"""Recipes of linear heads, and the settings that papers have, by name.

What no recipe here can have are random crops, scales and flips of train images: features are computed once.

Where the papers' settings come from:

- hummingbird: github.com/vpariza/open-hummingbird-eval at 5e79da2 (hbird_eval.py, transforms.py, README): images and
  masks resized to a square, k = 30, temperature 0.02, bilinear upsampling of label shares, figures at 512 pixels and
  up to 1024 x 10^4 patches. Not confirmed: how Balazevic et al. (2023) themselves resize and crop.
- dinov2: BNHead is in github.com/facebookresearch/dinov2 at b8931f7. Its training configuration is not; optimizer,
  schedule and windows are from copies of it in other public repositories. Not confirmed: the batch of 16.
- dinov3: config-ade20k-linear-training.yaml, linear_head.py and transforms.py of github.com/facebookresearch/dinov3 at
  6876159.
- capi: eval_segmentation.py and default_eval_config.yaml of github.com/facebookresearch/capi at 98b4fa1.
"""

from dataclasses import dataclass, replace
from typing import Literal

HeadName = Literal["knn", "linear", "logreg"]


@dataclass(frozen=True)
class LinearRecipe:
    """How a 1x1 convolution is trained, by AdamW."""

    lr: float
    weight_decay: float
    schedule: Literal["cosine", "linear"]  # from `lr` to 0
    input: Literal["standardised", "batchnorm"]  # by the statistics of all patches, or a BatchNorm that is trained
    loss: Literal["patches", "pixels"]  # cross-entropy with the shares of a patch's pixels, or of upsampled scores
    batch: int  # patches or images, as `loss` says
    steps: int = 0  # at least
    epochs: int = 0  # at least
    warmup: int = 0  # steps in which the rate rises linearly from nearly 0
    dropout: float = 0.0  # of whole channels


@dataclass(frozen=True)
class LogisticRecipe:
    """Which logistic regressions are fitted; the best on held-out train images is kept."""

    strengths: tuple[float, ...]  # C, inverse strengths of the L2 penalty
    steps: int = 1000  # of L-BFGS, at most
    most: int | None = None  # patches, evenly spread; None takes all


LINEAR: dict[str, LinearRecipe] = {
    # Our own, minutes on a CPU. On held-out train images of a small sample of COCO, 300 steps were best of 30 to 1,000.
    "fast": LinearRecipe(1e-3, 1e-2, "cosine", "standardised", "patches", batch=1024, steps=300, epochs=10),
    # DINOv2's linear head on its last layer (BNHead in MMSegmentation), which has no dropout.
    "dinov2": LinearRecipe(1e-3, 1e-4, "linear", "batchnorm", "pixels", batch=16, steps=40_000, warmup=1500),
    # DINOv3's: 2 images on each of 8 GPUs.
    "dinov3": LinearRecipe(
        1e-3, 1e-3, "cosine", "batchnorm", "pixels", batch=16, steps=40_000, warmup=1500, dropout=0.1
    ),
}
LOGISTIC: dict[str, LogisticRecipe] = {
    "fast": LogisticRecipe((1e-4, 1e-3, 1e-2), steps=200, most=50_000),
    # CAPI's eight values from 1e-6 to 1e5.
    "capi": LogisticRecipe(tuple(10.0 ** (-6 + 11 * number / 7) for number in range(8))),
}


@dataclass(frozen=True)
class DenseSettings:
    """The choices of a paper's settings. None of a size or an interpolation is that of the checkpoint."""

    heads: tuple[HeadName, ...] = ("knn", "linear")
    mode: Literal["resize", "crop", "window"] = "resize"
    size: int | None = None
    resize: int | None = None  # None is `size`
    step: int | None = None  # None is two thirds of `size`
    interpolation: Literal["bilinear", "bicubic"] | None = None
    mask_size: Literal["original", "input"] = "original"
    upsampling: Literal["bilinear", "nearest"] = "bilinear"
    k: int = 30
    temperature: float = 0.02
    linear: str = "fast"
    logistic: str = "fast"


_WINDOWS = DenseSettings(heads=("linear",), mode="window", size=512, resize=512, step=341)
SETTINGS: dict[str, DenseSettings] = {
    "hummingbird": DenseSettings(heads=("knn",), size=512, interpolation="bilinear", mask_size="input"),
    "dinov2": replace(_WINDOWS, linear="dinov2"),
    "dinov3": replace(_WINDOWS, linear="dinov3", interpolation="bilinear"),
    "capi": DenseSettings(
        heads=("logreg",),
        size=224,
        interpolation="bicubic",
        mask_size="input",
        upsampling="nearest",
        logistic="capi",
    ),
}
