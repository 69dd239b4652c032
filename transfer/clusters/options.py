"""Options of the clusters protocol."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from excb.errors import require
from excb.options import REQUIRED, option

from ..options import PassOptions
from ..protocol import ProtocolOptions

ClusterMethod = Literal["kmeans", "hdbscan"]  # clusters of features
_SUBJECT = "checkpoint and images"


@dataclass(frozen=True, kw_only=True)
class ClusterInputs(PassOptions):
    """A checkpoint, and images with or without labels."""

    ckpt: Any = option(
        REQUIRED,
        "checkpoint with heads: a run, its export, the authors', DINO's; with --method or --k any",
        metavar="PATH",
        group=_SUBJECT,
    )
    data: str = option(
        REQUIRED,
        "images, folder with train/, shards, torchvision:NAME or hf:ID",
        metavar="SOURCE",
        group=_SUBJECT,
    )
    data_root: Path | None = option(None, "folder of torchvision's data sets", metavar="DIR", group=_SUBJECT)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(ProtocolOptions):
    """Which clusters, duplicate centroids, the picture and the atlas."""

    method: Literal["heads", "kmeans", "hdbscan"] = option(
        "heads", "whose clusters: the checkpoint's (default), or k-means' or HDBSCAN's of its features"
    )
    k: int | None = option(
        None, "clusters of k-means, which --k alone asks for (default: the square root of the images)", metavar="K"
    )
    compare: tuple[Path, ...] = option(
        (), "earlier --out folders to show in the same plot", metavar="DIR", files_only=True
    )
    duplicates: float = option(0.99, "cosine above which centroids are duplicates (default: 0.99)", metavar="COSINE")
    exemplars: int = option(
        9, "images per cluster in the atlas (default: 9, and 3 at its border)", metavar="N", files_only=True
    )
    atlas_mb: float = option(48.0, "MB of pictures in the atlas (default: 48)", metavar="MB", files_only=True)

    @property
    def of_features(self) -> ClusterMethod | None:
        """How to cluster features; None to use the checkpoint's centroids."""
        return self.method if self.method != "heads" else "kmeans" if self.k is not None else None

    def check(self, _shared: Any) -> None:
        """Raise UserError where a value is out of range."""
        require(self.k is None or self.k >= 2, "--k must be at least 2")
        require(self.k is None or self.method != "hdbscan", "--k is for k-means: HDBSCAN finds the number itself")
        require(-1 < self.duplicates < 1, "--duplicates is a cosine below 1, such as 0.99")
        require(self.exemplars >= 1, "--exemplars must be at least 1")
        require(0 <= self.atlas_mb < math.inf, "--atlas-mb must be at least 0")
