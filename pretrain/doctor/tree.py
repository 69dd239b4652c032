"""The folder of images: formats, classes with few images, splits mistaken for classes, duplicate files."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from excb.images.decoding import BrokenImageError
from excb.images.image_set import CodedImages
from excb.images.shards import ShardImages

from .finding import Finding, plural, such_as

FEW = 5  # images; smaller classes make k-NN accuracy unreliable
SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}
HEAD = 2**16  # bytes read of files that share a name and a size


def check_tree(images: CodedImages, batch: int | None = None) -> list[Finding]:
    """Check the folder without decoding an image."""
    return [_images(images, batch), _classes(images), _copies(images)]


def _images(images: CodedImages, batch: int | None) -> Finding:
    kinds = Counter(PurePosixPath(path).suffix.lower() for path in images.paths)
    formats = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    found = f"{plural(len(images), 'image')} below {images.root}: {formats}"
    if len(images) < 2:
        return Finding("images", "error", found, "pretraining needs many images, at least a few thousand")
    if batch is not None and batch > len(images):
        found = f"{found}; the batch of {batch:,} is larger"
        return Finding("images", "error", found, "lower optim.batch, or add images")
    return Finding("images", "ok", found)


def _classes(images: CodedImages) -> Finding:
    if images.classes is None or images.labels is None:
        return Finding("classes", "ok", "no labels (not every image is in a class folder): k-NN is not measured")
    names = images.classes
    if {name.lower() for name in names} <= SPLITS:
        return Finding(
            "classes",
            "error",
            f"the classes are named {', '.join(names)}: these look like splits",
            f"name the training split: --data {images.root}/{names[0]}",
            names,
        )
    sizes = np.bincount(images.labels, minlength=len(names))
    found = f"{plural(len(names), 'class', 'classes')} of {sizes.min():,} to {sizes.max():,} images"
    few = tuple(f"{names[index]} ({sizes[index]})" for index in np.argsort(sizes, kind="stable") if sizes[index] < FEW)
    if few:
        return Finding(
            "classes",
            "warning",
            f"{found}; {plural(len(few), 'class has', 'classes have')} fewer than {FEW} images{such_as(few)}",
            "add images, or merge classes; training does not use labels, only k-NN does",
            few,
        )
    return Finding("classes", "ok", found)


def _copies(images: CodedImages) -> Finding:
    """Files with equal name, size and first bytes in several folders, as copied folders leave them."""
    if not (copies := list(_equal_files(images))):
        return Finding("copies", "ok", "no file is in two folders")
    pairs = tuple(" = ".join(paths) for paths in copies)
    more = sum(len(paths) - 1 for paths in copies)
    return Finding(
        "copies",
        "warning",
        f"{plural(more, 'file is a copy', 'files are copies')} (same name, size and first bytes){such_as(pairs)}",
        "remove the copies: they count twice, and their labels conflict where they are in several classes",
        pairs,
    )


def _equal_files(images: CodedImages) -> Iterator[list[str]]:
    """Groups of equal files. Only files that share a name are compared."""
    named: defaultdict[str, list[int]] = defaultdict(list)
    for index, path in enumerate(images.paths):
        named[PurePosixPath(path).name].append(index)
    for indices in named.values():
        if len(indices) < 2:
            continue
        sizes = {index: _bytes(images, index) for index in indices}
        shared = Counter(sizes.values())
        equal: defaultdict[tuple[int, bytes], list[str]] = defaultdict(list)
        for index, count in sizes.items():
            if count and shared[count] > 1:
                equal[count, _head(images, index)].append(images.paths[index])
        yield from (group for group in equal.values() if len(group) > 1)


def _bytes(images: CodedImages, index: int) -> int:
    """An image's size; 0 if it is missing, which the check of files reports."""
    if isinstance(images, ShardImages):
        return int(images.index.sizes[index])
    source = images.source(index)
    assert isinstance(source, str | Path)
    try:
        return Path(source).stat().st_size
    except OSError:
        return 0


def _head(images: CodedImages, index: int) -> bytes:
    try:
        source = images.source(index)
        with Path(source).open("rb") if isinstance(source, str | Path) else source as stream:
            return hashlib.sha256(stream.read(HEAD)).digest()
    except (OSError, BrokenImageError):
        return b""
