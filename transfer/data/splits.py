"""Subsets of a training set for semi-supervised evaluation: SimCLR's 1 % and 10 % of ImageNet, and seeded fractions."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import numpy as np

from excb.console import plural
from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError, one_line, require
from excb.files.atomic import write_text
from excb.files.csv_text import read_listing
from excb.images.image_set import Images
from excb.remote.download import open_address
from excb.seeding import Purpose, generator
from excb.sources.opening import read_list

ADDRESS = "https://raw.githubusercontent.com/google-research/simclr/master/imagenet_subsets/{}"
TIMEOUT = 30  # seconds without an answer
MOST = 1 << 24  # bytes of an answer; the longer list has 3 million


@dataclass(frozen=True)
class _Published:
    """A published list of file names."""

    percent: int
    lines: int
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.percent}percent.txt"

    @property
    def address(self) -> str:
        return ADDRESS.format(self.name)

    def describes(self, names: Sequence[str]) -> bool:
        published = "".join(f"{name}\n" for name in names)  # whatever the line ends of this copy
        return len(names) == self.lines and hashlib.sha256(published.encode()).hexdigest() == self.sha256


# google-research/simclr, imagenet_subsets/; TensorFlow Datasets calls the same lists imagenet2012_subset.
_PUBLISHED = {
    1: _Published(1, 12_811, "71e82a48ba78252683ae334c4d019ebd5c6e855b9599c1389fbe83eb9549cf17"),
    10: _Published(10, 128_116, "6d09de11e7bdaf5b1f3b1f249b6183695f97310cdd20f0c03e7235b6b9392091"),
}


def simclr_split(percent: int, images: Images, *, file: Path | None = None, cache: Path) -> np.ndarray:
    """The images of SimCLR's 1 % or 10 % of ImageNet, or of any other list.

    The published list is downloaded once and verified by its number of lines and its SHA-256. Rank 0 reads the list for
    all ranks.

    Args:
        percent: 1 or 10; ignored with another list.
        images: the whole training set.
        file: a list to use instead, with one file name or path below the set's root per line. A copy of a published
            list is verified, too.
        cache: folder for downloads.

    Returns:
        Sorted int64 indices into `images`.

    Raises:
        UserError: the list cannot be loaded, is damaged, or names an image twice or one that is not in the set.
    """
    names = run_on_rank0(lambda: _published(percent, cache) if file is None else _read_list(percent, file))
    return _find(names, images, source="SimCLR's list" if file is None else str(file))


def stratified_split(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """A seeded fraction of the images, stratified by class.

    The split is a prefix of one order of all images. A smaller fraction is therefore a subset of every larger one with
    the same seed, and the total is exactly round(fraction * N). The order starts with one image of each class. Image p
    of a class of n follows at (p + 1/2) / n, which is Webster's rounding: a class gives about round(fraction * n)
    images. Counts of equally large classes differ by at most 1, as in SimCLR's lists.

    Args:
        labels: class index of every image, [N].
        fraction: share of the images, above 0 and at most 1.
        seed: fixes the selection.

    Returns:
        Sorted int64 indices, at least one of every class.

    Raises:
        UserError: the fraction is out of range.
    """
    require(0 < fraction <= 1, f"--fraction {fraction:g}: it must be above 0 and at most 1")
    place, draw = np.empty(len(labels)), np.empty(len(labels))
    classes = np.unique(labels)
    for label in classes:
        random = generator(Purpose.SPLIT, seed, int(label))
        members = random.permutation(np.flatnonzero(labels == label))
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
        place[members[0]] = 0
        draw[members] = random.random()  # random order of equally large classes, too
    order = np.lexsort((draw, place))
    return np.sort(order[: max(len(classes), round(fraction * len(labels)))])


def _published(percent: int, cache: Path) -> Sequence[str]:
    """The names of a published list, downloaded if the cache holds no intact copy."""
    require(
        percent in _PUBLISHED,
        f"SimCLR published lists of 1 % and 10 %, none of {percent} %: name your own with --split-file FILE",
    )
    published = _PUBLISHED[percent]
    file = cache / published.name
    if file.is_file():
        names = read_listing(file, "utf-8", "replace").splitlines()
        if published.describes(names):
            return names
    names = _download(published).splitlines()
    if not published.describes(names):
        raise UserError(
            f"{published.address} gave {plural(len(names), 'line')}, not SimCLR's {published.lines:,}: name a copy of "
            "the list with --split-file FILE"
        )
    write_text("".join(f"{name}\n" for name in names), file)
    return names


def _download(published: _Published) -> str:
    try:
        with open_address(published.address, timeout=TIMEOUT) as response:
            return str(response.read(MOST).decode("utf-8", "replace"))
    except (OSError, HTTPException) as error:
        raise UserError(
            f"cannot download {published.address} ({one_line(error)}): download it elsewhere and name it with "
            "--split-file FILE"
        ) from None


def _read_list(percent: int, file: Path) -> Sequence[str]:
    """The names of the user's list; a list that is a published one, or is named like one, is verified."""
    names = read_list(file).paths
    for published in _PUBLISHED.values():
        if published.describes(names):
            require(
                published.percent == percent or percent not in _PUBLISHED,
                f"{file} is SimCLR's {published.percent} % list, not the {percent} % one: name {percent}percent.txt",
            )
        elif file.name == published.name and all(re.fullmatch(r"n\d{8}_\d+\.JPEG", name) for name in names):
            raise UserError(
                f"{file} is not SimCLR's {published.percent} % list: it has {plural(len(names), 'line')} of "
                f"{published.lines:,} or another sha256; get it again from {published.address}, or rename it if it is "
                "a list of your own"
            )
    return names


def _find(names: Sequence[str], images: Images, *, source: str) -> np.ndarray:
    """Indices of the named images; a name is a path below the root, or a file name if that is unique."""
    wanted, indices_by_name = set(names), dict[str, int]()
    for index, path in enumerate(images.paths):
        for name in {path, path.rpartition("/")[2]} & wanted:
            if name in indices_by_name:
                raise UserError(
                    f"{source} names {name}, but {images.root} holds {images.paths[indices_by_name[name]]} and {path}: "
                    "write paths below that folder"
                )
            indices_by_name[name] = index
    if missing := [name for name in names if name not in indices_by_name]:
        raise UserError(
            f"{len(missing):,} of {plural(len(names), 'name')} of {source} not in {images.root}, such as "
            f"{missing[0]}: the list must be of this set's training images"
        )
    indices = np.sort(np.fromiter(indices_by_name.values(), dtype=np.int64))
    twice = indices[1:][np.diff(indices) == 0]
    require(not len(twice), f"{source} names one image twice, by file name and by path; remove one of them")
    return indices
