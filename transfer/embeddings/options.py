"""Options of `embed` and `search`, and those of all commands on images with labels or not."""

from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from excb.cli import local_path
from excb.console import plural
from excb.errors import UserError, require
from excb.images.decoding import BrokenImageError, PixelsError, open_image
from excb.images.formats.video import stored_file
from excb.option_parser import require_use
from excb.options import option

from ..options import PassOptions

CALIBRATED: Literal["calibrated"] = "calibrated"  # `--near-duplicates` without a number


def _cosine(text: str) -> float | str:
    try:
        return text if text == CALIBRATED else float(text)
    except ValueError:
        raise ArgumentTypeError(f"takes a cosine, such as 0.95, or nothing to calibrate it, not {text!r}") from None


@dataclass(frozen=True, kw_only=True)
class AnyImagesOptions(PassOptions):
    """Images with labels or not."""

    data: str | None = option(
        None, "images in folders of any depth, with labels or not; shards; hf:ID ...", metavar="SOURCE", group="images"
    )
    listed: Path | None = option(
        None, "a file with one image path per line, below --data", metavar="FILE", flag="list", group="images"
    )
    every: float | None = option(
        None,
        "also take a frame of each video every so many seconds (default: only of a video that --data names, every 1)",
        metavar="SECONDS",
        group="images",
    )
    data_root: Path | None = option(None, "folder with torchvision's data sets", metavar="DIR", group="images")


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(AnyImagesOptions):
    """An index of the vectors."""

    index: Path | None = option(
        None,
        "write a FAISS index of unit vectors here too, and FILE.json",
        metavar="FILE",
        words={"type": local_path},
    )


@dataclass(frozen=True, kw_only=True)
class SearchOptions(EmbedOptions):
    """Queries and near-duplicates."""

    query: tuple[str, ...] = option((), "images whose nearest neighbours to find", metavar="IMAGE")
    k: int = option(12, "nearest images of each query (default: 12)", metavar="K")
    near_duplicates: float | Literal["calibrated"] | None = option(
        None,
        "list groups of images that are almost the same, and which file to keep; from this cosine, or without a number "
        "from one that is calibrated on altered copies of these images",
        metavar="COSINE",
        words={"nargs": "?", "const": CALIBRATED, "type": _cosine},
    )

    @property
    def cosine(self) -> float | None:
        """From which images are near-duplicates; None to calibrate it."""
        return None if isinstance(self.near_duplicates, str) else self.near_duplicates

    @property
    def then(self) -> list[str]:
        """The work that follows the vectors, in words."""
        lines = (
            [f"the {plural(self.k, 'nearest image')} of {plural(len(self.query), 'query', 'queries')}"]
            if self.query
            else []
        )
        if self.near_duplicates is None:
            return lines
        copies = ", and altered copies of some that calibrate it" if self.cosine is None else ""
        return [*lines, f"near-duplicates: every pair of these images{copies}"]

    def check(self) -> None:
        """Raise UserError where a query is no file or cannot be read, or k is not positive or has no use."""
        require(self.k >= 1, "--k must be at least 1")
        require_use(self, "k", used=bool(self.query), why="is of queries, and --query names none")
        missing = [name for name in self.query if not stored_file(Path(name)).is_file()]
        require(not missing, f"--query {missing[:1] and missing[0]}: no such file")
        for name in self.query:  # before all other images are read
            try:
                open_image(name)
            except PixelsError:
                pass  # of more bits or channels: the vectors' record says how they are read
            except BrokenImageError as error:
                reason = f"cannot be read as an image ({error}): fix it, or leave it out"
                raise UserError(f"--query {name} {reason}") from None
