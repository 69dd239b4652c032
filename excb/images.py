"""Sets of images on disk: folders of any depth with or without labels, or lists of paths; and opening any image."""

import hashlib
import os
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import ExifTags, Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from excb.errors import UserError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")

Shrink = Callable[[tuple[int, int]], int]  # upright width and height -> 1, 2, 4 or 8


class Images(Protocol):
    """Labelled images with a fixed order, wherever they are kept; `ImageSet` is one of them."""

    @property
    def root(self) -> Path:
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
        """A hash: equal for equal sets, different where an image or a label differs."""

    def __len__(self) -> int:
        """Number of images."""

    def open(self, index: int) -> Image.Image:
        """One image as upright 8-bit RGB.

        Raises:
            BrokenImageError: it cannot be read.
        """


@dataclass(frozen=True)
class ImageSet:
    """Images with a fixed order: `root / paths[i]` is sample i.

    Args:
        root: folder that the paths start from.
        paths: POSIX paths below root, sorted.
        labels: class index of every sample, or None.
        classes: class names, or None.
    """

    root: Path
    paths: Sequence[str]
    labels: np.ndarray | None = None
    classes: tuple[str, ...] | None = None

    def __len__(self) -> int:
        """Number of images."""
        return len(self.paths)

    def file(self, index: int) -> Path:
        """The file of one sample."""
        return self.root / self.paths[index]

    def open(self, index: int) -> Image.Image:
        """One sample as upright 8-bit RGB.

        Raises:
            BrokenImageError: it cannot be read.
        """
        return open_image(self.file(index))

    def open_smaller(self, index: int, shrink: Shrink) -> tuple[Image.Image, tuple[int, int]]:
        """One sample, perhaps decoded smaller, and its whole size (see the function of this name).

        Raises:
            BrokenImageError: it cannot be read.
        """
        return open_smaller(self.file(index), shrink)

    @property
    def fingerprint(self) -> str:
        """A hash of the list of files and their labels: equal for equal sets wherever they lie."""
        digest = hashlib.sha256("\n".join(self.paths).encode("utf-8", "surrogateescape"))
        if self.labels is not None:
            digest.update(np.ascontiguousarray(self.labels, dtype="<i8").tobytes())
        return digest.hexdigest()


def scan_folder(folder: Path | str) -> ImageSet:
    """Find the images below a folder, at any depth, in an order that depends on nothing but their names.

    Where every image lies in a sub-folder and there are at least two of these, the first-level sub-folders are the
    classes. Hidden files and folders are passed over.

    Raises:
        UserError: the folder is missing or holds no image.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"no folder {root}: name the folder that holds your images")
    paths: list[str] = []
    seen: set[str] = set()
    for here, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(here)
        if real in seen:  # a link back into the tree
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        below = Path(here).relative_to(root).as_posix()
        prefix = "" if below == "." else f"{below}/"
        paths += [prefix + name for name in files if name.lower().endswith(EXTENSIONS) and not name.startswith(".")]
    if not paths:
        raise UserError(f"no image below {root}: it needs files ending in {' '.join(EXTENSIONS)}")
    paths.sort()
    tops = [path.split("/", 1)[0] for path in paths]
    classes = tuple(sorted(set(tops)))
    if len(classes) < 2 or any("/" not in path for path in paths):
        return ImageSet(root, paths)
    index = {name: number for number, name in enumerate(classes)}
    return ImageSet(root, paths, np.array([index[top] for top in tops]), classes)


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


def read_training_images(data: Path | None, listed: Path | None = None) -> ImageSet:
    """The images that a run trains on: those of a list, or below `data/train`, or below `data`.

    Raises:
        UserError: as `scan_folder` and `read_list`.
    """
    if listed is not None:
        return read_list(listed, data)
    assert data is not None
    return scan_folder(data / "train" if (data / "train").is_dir() else data)


class BrokenImageError(Exception):
    """A file that is no readable image; the message says why."""


# All that Pillow's decoders were seen to raise at files with changed or missing bytes, and relatives of these.
DAMAGE = (
    ArithmeticError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


def open_image(file: Path | str) -> Image.Image:
    """Open an image of any format and mode as upright 8-bit RGB.

    EXIF rotation is applied, 16-bit and floating-point greys are scaled to 8 bits, of animations the first frame is
    taken.

    Raises:
        BrokenImageError: the file is missing, truncated, no image, or too large to be one in good faith.
    """
    return open_smaller(file, lambda _size: 1)[0]


def open_smaller(file: Path | str, shrink: Shrink) -> tuple[Image.Image, tuple[int, int]]:
    """Open an image as `open_image` does, a JPEG at a half, a quarter or an eighth of its width and height if wanted.

    JPEG's decoder does less work for fewer pixels; each one is a mean of those it stands for, as sharp as its size
    allows.

    Args:
        file: any image.
        shrink: given a JPEG's upright width and height, by how much both are to be divided, 1, 2, 4 or 8; less where
            one of them is shorter than this.

    Returns:
        The image, and its whole width and height, upright.

    Raises:
        BrokenImageError: see `open_image`.
    """
    try:
        # Pillow warns of large images and of odd metadata: neither is the user's to mend, nor changes the pixels.
        with warnings.catch_warnings(action="ignore"), Image.open(file) as image:
            whole = None
            if isinstance(image, JpegImageFile):
                width, height = image.size
                whole = _upright_size(image)
                if (divisor := shrink(whole)) > 1:
                    image.draft(None, (max(1, width // divisor), max(1, height // divisor)))
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return to_rgb(image), whole or image.size
    except DAMAGE as error:
        raise BrokenImageError(f"{type(error).__name__}: {error}") from None


def _upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height of an opened image once it is upright, as `open_image` gives it; no pixel is decoded."""
    turned = image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
    return (image.height, image.width) if turned else image.size


def stored_and_upright_size(file: Path | str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Width and height of an image as it is stored and as `open_image` gives it, without decoding a pixel.

    Raises:
        BrokenImageError: the file is missing, or no image.
    """
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(file) as image:  # as `open_image`
            return image.size, _upright_size(image)
    except DAMAGE as error:
        raise BrokenImageError(f"{type(error).__name__}: {error}") from None


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB without a warning; Pillow alone would clip deep greys to white."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.nan_to_num(np.asarray(image, dtype=np.float64))
        if image.mode == "F":
            top = 1.0 if values.max(initial=0) <= 1 else 255.0
        else:
            top = 65_535.0 if values.max(initial=0) > 255 else 255.0  # 8-bit values in a deep mode stay as they are
        image = Image.fromarray((values.clip(0, top) * (255 / top)).round().astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # from P straight to RGB, Pillow would warn that transparency is lost
    return image if image.mode == "RGB" else image.convert("RGB")
