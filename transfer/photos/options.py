"""Options of `excb-eval photos`."""

from dataclasses import dataclass
from pathlib import Path

from excb.options import REQUIRED, option

from ..options import RangeOption

SURE = 0.9  # share of right answers among the guesses that are called sure


@dataclass(frozen=True, kw_only=True)
class PhotosOptions(RangeOption):
    """A folder, its labels, and what is asked of it."""

    folder: str = option(REQUIRED, "folder of images, at any depth", metavar="FOLDER", positional=True)
    labels: Path | None = option(
        None,
        "a CSV or Parquet file with the columns path and label, or labels for several (default: sub-folders)",
        metavar="FILE",
    )
    networks: tuple[str, ...] = option(
        (), "to compare, as excb.load takes them (default: those of `excb-zoo list` on this machine)", metavar="NAME"
    )
    series: str | None = option(
        None, "column of --labels: images with one value stay on one side of every split", metavar="COLUMN"
    )
    sure: float = option(
        SURE, f"share of right answers among guesses that are called sure (default: {SURE})", metavar="SHARE"
    )
    next: int = option(20, "images to suggest for labelling (default: 20)", metavar="N")
    seed: int = option(0, "of cross-validation and clusters (default: 0)", metavar="N")
    device: str = option("auto", "cpu, cuda or auto (default)", metavar="NAME")
    cache: Path | None = option(None, "folder for features (default: $EXCB_CACHE, else ~/.cache/excb)", metavar="DIR")
