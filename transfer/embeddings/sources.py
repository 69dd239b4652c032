"""Any images as one set: a folder of any depth, a list, shards, a named set, files, or pictures in memory."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from excb.errors import UserError, require
from excb.images.formats import video
from excb.images.image_set import Images, ImageSet, fingerprint_of
from excb.images.picture import as_channels, is_picture
from excb.images.pixels import EIGHT_BIT, Pixels
from excb.images.tars.places import is_shards
from excb.sources.label_files import is_table, scan_labelled
from excb.sources.opening import open_images, training_images

from ..data.sources import is_named, training_source

SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation", "dev"}  # folders that are no classes


def any_images(
    data: str | None,
    listed: Path | None = None,
    *,
    every: float | None = None,
    data_root: Path | None = None,
    note: Callable[[str], None],
) -> Images:
    """All images that a text names, whatever folders they are in.

    Args:
        data: a folder, whose images are all taken; shards; torchvision:NAME or hf:ID, whose training images are taken.
        listed: a file with one image path a line, below `data`.
        every: seconds between the frames that are taken of videos; None takes those of a video that `data` names.
        data_root: folder of torchvision's data sets.
        note: called with messages for the user.

    Raises:
        UserError: there are none, or they cannot be used.
    """
    require(bool(data or listed), "name the images with --data DIR, or a list of them with --list FILE")
    if listed is not None:
        require(every is None, "--every takes frames of the videos of a folder, and --list names files: leave one out")
        return training_images(data, listed, note)
    assert data is not None
    if is_shards(data) or is_named(data):
        require(every is None, f"--every takes frames of the videos of a folder, and {data} is none: leave it out")
        if is_shards(data):
            return open_images(data, note)
        return training_source(data, data_root=data_root, note=note)
    if video.is_video(data) and Path(data).is_file():
        return ImageSet(Path(data).parent, frames_of(Path(data).name, every, Path(data).parent))
    is_file = Path(data).is_file() and not is_table(data)
    require(not is_file, f"{data} is a file: name a folder or a CSV with --data, or a list with --list FILE")
    return scan_labelled(data, None, note, every=every)


def frames_of(path: str, every: float | None, root: Path = Path()) -> list[str]:
    """Paths of the frames of a video that is named itself. Raises UserError if it cannot be opened."""
    try:
        return video.frame_paths(root / path, path, video.EVERY if every is None else every)
    except OSError as error:
        raise UserError(f"{path} cannot be read as a video ({error})") from None


def class_names(images: Images, rows: np.ndarray) -> list[str | None] | None:
    """The class of each of some images of a set, int64 [n]; None where it has none.

    Where the first folders are train, test and val, as in a set with both splits, the folders in them are the classes.
    """
    if images.labels is None or images.classes is None:
        return None
    if set(images.classes) <= SPLITS:
        parts = [images.paths[row].split("/") for row in rows.tolist()]
        return [names[1] if len(names) > 2 else None for names in parts]
    return [images.classes[label] if label >= 0 else None for label in images.labels[rows].tolist()]


@dataclass(frozen=True)
class Pictures:
    """Pictures in memory, numbered."""

    pictures: list[Any]  # as `as_rgb` takes them
    root: str = "memory"
    labels: None = None
    classes: None = None
    pixels: Pixels = EIGHT_BIT  # how their values become channels

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def paths(self) -> list[str]:
        """Files by their paths, other pictures by their numbers."""
        return [
            os.fspath(picture) if isinstance(picture, str | os.PathLike) else str(number)
            for number, picture in enumerate(self.pictures)
        ]

    @property
    def fingerprint(self) -> str:
        """Of the names only: features of these are not kept."""
        return fingerprint_of(self.paths, None)

    def stamp(self, index: int) -> str:
        """Empty: these are not files."""
        del index
        return ""

    def open(self, index: int) -> Any:
        """One picture as `as_channels` has it. Raises UserError if it is none."""
        return as_channels(self.pictures[index], self.pixels)


def given_images(images: Any, every: float | None = None) -> Images | str:
    """The images that a Python call was given: a set, or the text that names one; of videos, frames `every` seconds.

    Raises:
        UserError: it is something else, or empty.
    """
    if isinstance(images, str | os.PathLike):
        text = os.fspath(images)
        return ImageSet(Path(), _with_frames([text], every)) if Path(text).is_file() else text
    if is_picture(images):
        return Pictures([images])
    if isinstance(images, ImageSet) or hasattr(images, "fingerprint"):
        return images  # type: ignore[no-any-return]
    if not isinstance(images, Iterable):
        raise UserError(f"images are a folder, files, PIL images or arrays, not a {type(images).__name__}")
    several = list(images)
    require(bool(several), "there is no image to embed: name a folder, or pass one image or several")
    if all(isinstance(each, str | os.PathLike) for each in several):
        return ImageSet(Path(), _with_frames([os.fspath(each) for each in several], every))
    for each in several:  # before any work
        require(is_picture(each), f"images are files, PIL images or arrays [H, W, 3], not a {type(each).__name__}")
    return Pictures(several)


def _with_frames(paths: list[str], every: float | None) -> list[str]:
    """Files, with frames in the place of videos."""
    return [each for path in paths for each in (frames_of(path, every) if video.is_video(path) else [path])]
