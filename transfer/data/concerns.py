"""Concerns about a train and a test set that can both be used: likely mistakes that a figure would hide."""

import hashlib
import os
from collections import defaultdict
from pathlib import Path

from excb.images.image_set import Images, ImageSet
from excb.images.scanning import is_folder

MOST = 100_000  # images whose files are compared; of more, their listing alone takes minutes on a network's disk


def concerns(train: Images, test: Images) -> list[str]:
    """A sentence for each."""
    lines = [line for images in (train, test) for line in _empty_classes(images)]
    if len(train) < len(test):
        lines.append(
            f"{train.root} has {len(train):,} train images, fewer than the {len(test):,} test images of {test.root}: "
            "are the two swapped?"
        )
    return [*lines, *_identical(train, test)]


def _empty_classes(images: Images) -> list[str]:
    """Class folders without an image, which are not classes."""
    root = Path(images.root)
    if not isinstance(images, ImageSet) or images.labels is None or not root.is_dir():
        return []
    known = {path.partition("/")[0] for path in images.paths}
    with os.scandir(root) as entries:
        empty = sorted(
            entry.name
            for entry in entries
            if is_folder(entry) and not entry.name.startswith(".") and entry.name not in known
        )
    if not empty:
        return []
    few = ", ".join(empty[:3]) + (", ..." if len(empty) > 3 else "")
    many = len(empty) > 1
    return [f"{root} has {len(empty)} class folder{'s' * many} without an image ({few}): no class{'es' * many} of it"]


def _identical(train: Images, test: Images) -> list[str]:
    """Test images whose very file is among the train images, whatever its name."""
    if not isinstance(train, ImageSet) or not isinstance(test, ImageSet) or len(train) + len(test) > MOST:
        return []
    try:
        sizes = defaultdict[int, list[Path]](list)
        for index in range(len(train)):
            sizes[(file := Path(train.file(index))).stat().st_size].append(file)
        digests: dict[int, dict[str, Path]] = {}
        pairs = []
        for index in range(len(test)):
            file = Path(test.file(index))
            size = file.stat().st_size
            if size in sizes:
                digests.setdefault(size, {_digest(each): each for each in sizes[size]})
                if (same := digests[size].get(_digest(file))) is not None:
                    pairs.append((file, same))
    except OSError:  # a file that cannot be read is reported when it is used
        return []
    if not pairs:
        return []
    first, same = pairs[0]
    return [
        f"{len(pairs):,} of {len(test):,} test images are among the train images too, such as {first} and {same}: "
        "their figures say nothing about new images"
    ]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
