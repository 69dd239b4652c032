"""The data tree: formats, classes with few images, splits taken for classes, copies of files."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from excb.images.decoding import BrokenImageError
from excb.images.image_set import CodedImages
from excb.images.shards import ShardImages

from .finding import Finding, plural, such_as

FEW = 5  # images; a class with fewer says little in k-NN figures
SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}
BEGINNING = 2**16  # bytes that are read of files with one name and one size


def check_tree(images: CodedImages, batch: int | None = None) -> list[Finding]:
    """All checks of the tree, without opening an image.

    Args:
        images: the training images.
        batch: of a step, all processes together, where a recipe is given.
    """
    return [_images(images, batch), _classes(images), _copies(images)]


def _images(images: CodedImages, batch: int | None) -> Finding:
    kinds = Counter(PurePosixPath(path).suffix.lower() for path in images.paths)
    formats = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    found = f"{plural(len(images), 'image')} below {images.root}: {formats}"
    if len(images) < 2:
        return Finding("images", "error", found, "pretraining needs many images, a few thousand at the least")
    if batch is not None and batch > len(images):
        return Finding(
            "images", "error", f"{found}; the batch of {batch:,} is larger", "lower optim.batch, or add images"
        )
    return Finding("images", "ok", found)


def _classes(images: CodedImages) -> Finding:
    if images.classes is None or images.labels is None:
        return Finding("classes", "ok", "no labels (not every image lies in a class's folder): k-NN is not measured")
    names = images.classes
    if {name.lower() for name in names} <= SPLITS:
        return Finding(
            "classes",
            "error",
            f"the classes are called {', '.join(names)}: these look like parts of a set",
            f"name the training part alone: --data {images.root}/{names[0]}",
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
            "add images, or merge classes; labels are used for figures only, training goes without them",
            few,
        )
    return Finding("classes", "ok", found)


def _copies(images: CodedImages) -> Finding:
    """Files of one name, one size and one beginning in several folders: what copying folders leaves."""
    copies = list(_equal_files(images))
    if not copies:
        return Finding("copies", "ok", "no file lies in two folders under one name")
    pairs = tuple(" = ".join(paths) for paths in copies)
    more = sum(len(paths) - 1 for paths in copies)
    return Finding(
        "copies",
        "warning",
        f"{plural(more, 'file is a copy', 'files are copies')} (same name, size and beginning){such_as(pairs)}",
        "remove the copies: they count twice, and leak where they lie in several classes",
        pairs,
    )


def _equal_files(images: CodedImages) -> Iterator[list[str]]:
    """Groups of equal files; only those that share a name are looked at."""
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
                equal[count, _beginning(images, index)].append(images.paths[index])
        yield from (group for group in equal.values() if len(group) > 1)


def _bytes(images: CodedImages, index: int) -> int:
    """An image's size; 0 where it is missing, which is for the check of files to tell."""
    if isinstance(images, ShardImages):
        return int(images.index.sizes[index])
    source = images.source(index)
    assert isinstance(source, str | Path)
    try:
        return Path(source).stat().st_size
    except OSError:
        return 0


def _beginning(images: CodedImages, index: int) -> bytes:
    try:
        source = images.source(index)
        with Path(source).open("rb") if isinstance(source, str | Path) else source as stream:
            return hashlib.sha256(stream.read(BEGINNING)).digest()
    except (OSError, BrokenImageError):
        return b""
