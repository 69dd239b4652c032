"""Sets of images: folders of any depth with or without labels, or lists of paths."""

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from excb.errors import UserError
from excb.images.decoding import Source, open_image

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")


class Images(Protocol):
    """Labelled images with a fixed order, wherever they are kept; `ImageSet` is one of them."""

    @property
    def root(self) -> Path | str:
        """The folder, or the name of the source."""

    @property
    def paths(self) -> Sequence[str]:
        """A name for every image, the same each time."""

    @property
    def labels(self) -> np.ndarray | None:
        """Class index of every image, int64 [N]."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names."""

    @property
    def fingerprint(self) -> str:
        """A hash: equal for equal sets; with all stamps, different where an image or a label differs."""

    def __len__(self) -> int:
        """Number of images."""

    def stamp(self, index: int) -> str:
        """A text that is another one once a stored image may have changed; empty where the fingerprint says it."""

    def open(self, index: int) -> Image.Image:
        """One image as upright 8-bit RGB.

        Raises:
            BrokenImageError: it cannot be read.
        """


class CodedImages(Images, Protocol):
    """Images whose stored bytes can be had, so that pretraining chooses how to decode them."""

    def source(self, index: int) -> Source:
        """One image as it is stored; a stream is this caller's alone.

        Raises:
            BrokenImageError: it cannot be had.
        """


def fingerprint_of(paths: Sequence[str], labels: np.ndarray | None) -> str:
    """A hash of paths and labels."""
    digest = hashlib.sha256("\n".join(paths).encode("utf-8", "surrogateescape"))
    if labels is not None:
        digest.update(np.ascontiguousarray(labels, dtype="<i8").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class ImageSet:
    """Images with a fixed order: `root / paths[i]` is sample i.

    Args:
        root: folder that the paths start from.
        paths: POSIX paths below root, sorted.
        labels: class index of every sample, or None.
        classes: class names, or None.
        scanned: whether these are all images below root, as another scan would find them.
    """

    root: Path
    paths: Sequence[str]
    labels: np.ndarray | None = None
    classes: tuple[str, ...] | None = None
    scanned: bool = False

    def __len__(self) -> int:
        """Number of images."""
        return len(self.paths)

    def file(self, index: int) -> Path:
        """The file of one sample."""
        return self.root / self.paths[index]

    def source(self, index: int) -> Path:
        """The file of one sample."""
        return self.file(index)

    def stamp(self, index: int) -> str:
        """The file's size and time of change; "none" where there is none: whoever opens the image says so."""
        try:
            status = self.file(index).stat()
        except (OSError, ValueError):  # ValueError: a zero byte in the name
            return "none"
        return f"{status.st_size} {status.st_mtime_ns}"

    def open(self, index: int) -> Image.Image:
        """One sample as upright 8-bit RGB.

        Raises:
            BrokenImageError: it cannot be read.
        """
        return open_image(self.file(index))

    @property
    def fingerprint(self) -> str:
        """A hash of the list of files and their labels: equal for equal sets wherever they lie."""
        return fingerprint_of(self.paths, self.labels)


def scan_folder(folder: Path | str) -> ImageSet:
    """Find the images below a folder, at any depth, in an order that depends on nothing but their names.

    Where every image lies in a sub-folder and there are at least two of these, the first-level sub-folders are the
    classes. Hidden files and folders are passed over.

    Raises:
        UserError: the folder is missing or holds no image, or a folder in it cannot be read.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"no folder {root}: name the folder that holds your images")
    paths = [below + name for below, names in _walk(root) for name in names if name.lower().endswith(EXTENSIONS)]
    if not paths:
        tars = f"; name tars as '{root}/*.tar'" if any(root.glob("*.tar")) else ""
        raise UserError(f"no image below {root}: it needs files ending in {' '.join(EXTENSIONS)}{tars}")
    paths.sort()
    tops = [path.split("/", 1)[0] for path in paths]
    classes = tuple(sorted(set(tops)))
    if len(classes) < 2 or any("/" not in path for path in paths):
        return ImageSet(root, paths, scanned=True)
    index = {name: number for number, name in enumerate(classes)}
    return ImageSet(root, paths, np.array([index[top] for top in tops]), classes, scanned=True)


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Every folder below a folder once, links followed: its path and a slash ("" is the folder itself), and its files.

    `os.walk` calls itself for every level, and to resolve every path anew would take a time that grows with its square.
    """
    waiting, seen = [("", os.path.realpath(root))], set[str]()
    while waiting:
        below, real = waiting.pop()
        if real in seen:  # a link back into the tree
            continue
        seen.add(real)
        try:
            with os.scandir(root / below) as found:
                entries = sorted((entry for entry in found if not _passed_over(entry.name)), key=lambda e: e.name)
        except (FileNotFoundError, NotADirectoryError):  # it has just gone
            continue
        except OSError as error:
            raise _out_of_sight(root / below, error) from None
        folders, files = list[os.DirEntry[str]](), list[str]()
        for entry in entries:
            if is_folder(entry):
                folders.append(entry)
            else:
                files.append(entry.name)
        yield below, files
        for entry in reversed(folders):
            there = os.path.realpath(entry.path) if entry.is_symlink() else f"{real}/{entry.name}"
            waiting.append((f"{below}{entry.name}/", there))


def refuse_among(images: Images, out: Path) -> None:
    """Refuse a folder for results whose pictures the next scan of these images would count as images.

    Raises:
        UserError: `out` lies in the scanned folder, or is that folder; a hidden one is passed over by the scan.
    """
    if not isinstance(images, ImageSet) or not images.scanned:
        return
    place, root = out.resolve(), images.root.resolve()
    if place.is_relative_to(root) and not any(part.startswith(".") for part in place.relative_to(root).parts):
        raise UserError(
            f"--out in {out} is among the images of {images.root}, and its pictures would be counted with them: "
            "name a place outside that folder"
        )


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one.

    Raises:
        UserError: it is a link to a place that may not be looked at.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:  # that is a link that leads to itself
            raise _out_of_sight(entry.path, error) from None
        return False


def _passed_over(name: str) -> bool:
    """Hidden files and folders, and what a disk's own file system puts at its top, which only root can read."""
    return name.startswith(".") or name == "lost+found"


def _out_of_sight(place: Path | str, error: OSError) -> UserError:
    # To pass over it would leave out images, or a whole class, without a word.
    return UserError(f"cannot look into {place} ({error.strerror}): let it be read, or move it out of the images")


def read_list(file: Path | str, root: Path | str | None = None) -> ImageSet:
    """Read a list of image paths, one a line, relative to `root` or else to the list's own folder.

    The set has no labels. Empty lines and lines that start with # are passed over; the order of the list is kept.

    Raises:
        UserError: the list is missing or empty, or names a file twice.
    """
    file = Path(file)
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()  # Windows editors put a mark before the first line
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the list {file}: {error}") from None
    paths = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not paths:
        raise UserError(f"the list {file} names no image: write one path a line")
    path, times = Counter(paths).most_common(1)[0]
    if times > 1:
        raise UserError(f"the list {file} names {path} more than once: remove the repeats")
    return ImageSet(Path(root) if root is not None else file.parent, paths)
