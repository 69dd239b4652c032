"""Options of instance retrieval."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from excb.errors import UserError, require
from excb.options import REQUIRED, option

from ..options import OwnSetOptions
from ..protocol import ProtocolOptions

Mode = Literal["resize", "longer", "crop"]
_SET, _DESCRIPTORS, _MEASURED = "queries and gallery", "descriptors", "what is measured"


@dataclass(frozen=True, kw_only=True)
class InstanceOptions(ProtocolOptions):
    """The set, how its images become descriptors, and what is measured."""

    data: Path = option(REQUIRED, "queries, gallery and ground truth: docs/retrieval.md", metavar="DIR", group=_SET)
    layout: str | None = option(
        None, "revisited (ROxford, RParis), copydays or pairs (DISC21) (default: found)", metavar="NAME", group=_SET
    )
    ground_truth: Path | None = option(
        None, "for revisited and pairs (default: the file in --data)", metavar="FILE", group=_SET
    )
    distractors: str | None = option(None, "extra gallery images, right for no query", metavar="DIR", group=_SET)
    mode: Mode = option(
        "resize",
        "resize the whole image to a square (default), resize its longer side, or take its centre",
        group=_DESCRIPTORS,
    )
    size: int | None = option(
        None, "side of the input (default: the checkpoint's)", metavar="PIXELS", group=_DESCRIPTORS
    )
    scales: tuple[float, ...] = option(
        (1.0,), "scales of the input, averaged (default: 1)", metavar="S", group=_DESCRIPTORS
    )
    pooling: Literal["own", "gem", "both"] = option(
        "own", "the network's own (default), GeM over its map, or both", group=_DESCRIPTORS
    )
    gem_power: float = option(3.0, "power of GeM (default: 3)", metavar="P", group=_DESCRIPTORS)
    whiten: str | None = option(None, "learn PCA whitening on these images", metavar="DIR", group=_DESCRIPTORS)
    whiten_width: int | None = option(
        None, "dimensions that whitening keeps (default: all)", metavar="D", group=_DESCRIPTORS
    )
    candidates: int = option(10, "images for each query in muAP (default: 10)", metavar="K", group=_MEASURED)
    backend: Literal["auto", "faiss", "torch"] = option("auto", "search backend; all give the same", group=_MEASURED)

    def check(self, shared: OwnSetOptions) -> None:
        """Raise UserError unless all of it can be measured, and every option that is given has a use."""
        require(self.size is None or self.size >= 1, f"--size {self.size} is a side in pixels, at least 1")
        require(0 < self.gem_power < float("inf"), "--gem-power must be above 0, such as 3")
        require(all(0 < scale <= 4 for scale in self.scales), "--scales lie between 0 and 4, such as 1 0.7071 1.4142")
        require(
            self.whiten_width is None or self.whiten_width >= 1,
            "--whiten-width is a number of dimensions, at least 1",
        )
        require(self.candidates >= 1, "--candidates is a number of images for each query, at least 1")
        if self.whiten is None and self.whiten_width is not None:
            raise UserError("--whiten-width needs the images to learn it on: --whiten")
        if self.pooling == "own" and self.given("gem_power"):
            raise UserError("--gem-power has no use with --pooling own: choose gem or both, or leave it out")
        if self.mode == "longer" and shared.batch_size not in (1, type(shared).batch_size):
            raise UserError("--batch-size has no use with --mode longer: images of different sizes pass one at a time")
