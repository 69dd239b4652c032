"""Options of `overlap`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from excb.errors import require
from excb.option_parser import given_flags, require_use
from excb.options import option

from ..options import CKPT, PassOptions


@dataclass(frozen=True, kw_only=True)
class OverlapOptions(PassOptions):
    """Two sets of images, and the thresholds from which images overlap."""

    ckpt: Any = option(
        None, f"compare its features, too: {CKPT} (default: hashes only)", metavar="PATH", group="checkpoint and images"
    )
    train: str | None = option(
        None, "images used for training: a folder of any depth; shards; hf:ID ...", metavar="SOURCE", group="images"
    )
    test: str | None = option(
        None, "test images, likewise; for a named set, its test images", metavar="SOURCE", group="images"
    )
    data_root: Path | None = option(None, "folder with torchvision's data sets", metavar="DIR", group="images")
    cosine: float | None = option(
        None, "cosine of whitened features from which images overlap (default: calibrated)", metavar="C"
    )
    bits: int | None = option(None, "bits, out of 64, in which hashes may differ (default: calibrated)", metavar="B")
    k: int = option(3, "train images compared with each test image (default: 3)", metavar="K")
    calibrate: int = option(
        200,
        "train images to plant as altered copies (default: 200); 0 with --cosine and --bits",
        metavar="N",
    )
    control: Literal["all", "classes"] = option(
        "all",
        "images to compare non-copies with when thresholds are set: all other train images (default), or those of "
        "other classes, which finds more copies and also images of a class that only look alike",
    )

    def check(self) -> None:
        """Raise UserError where an option is out of range, or has no use beside the others."""
        require(bool(self.train and self.test), "name both sets of images: --train SOURCE --test SOURCE")
        cosine, bits = self.cosine, self.bits
        require(
            cosine is None or -1 < cosine <= 1, f"--cosine must be above -1 and at most 1, such as 0.8, not {cosine}"
        )
        require(cosine is None or self.ckpt is not None, "--cosine is of features: name a checkpoint with --ckpt")
        require(bits is None or 0 <= bits <= 64, f"--bits must lie in 0 to 64, such as 8, not {bits}")
        require(self.k >= 1, "--k must be at least 1")
        require(self.calibrate >= 0, "--calibrate must be at least 0")
        thresholds = bits is not None and (self.ckpt is None or cosine is not None)
        features = " and --cosine" if self.ckpt is not None else ""
        require(self.calibrate > 0 or thresholds, f"--calibrate 0 needs thresholds: name --bits{features}")
        require_use(self, "control", used=self.calibrate > 0, why="is of calibration, which --calibrate 0 leaves out")
        if self.ckpt is None:
            given = given_flags(self, "network", "resize", "crop", "feature_precision")
            require(not given, f"{' '.join(given[:1])} is of a checkpoint's features: name it with --ckpt")
