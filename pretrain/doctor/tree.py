"""The folder of images: formats, files left out, classes with few images, splits mistaken for classes, copies."""

from collections import Counter
from pathlib import PurePosixPath

import numpy as np

from excb.console import plural
from excb.images import copies
from excb.images.image_set import CodedImages, ledger_of
from excb.images.shards import ShardImages

from .finding import Finding, such_as

FEW = 5  # images; smaller classes make k-NN accuracy unreliable
SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}


def check_tree(images: CodedImages, batch: int | None = None) -> list[Finding]:
    """Check the folder without decoding an image."""
    return [_images(images, batch), _left_out(images), _classes(images), _copies(images)]


def _images(images: CodedImages, batch: int | None) -> Finding:
    kinds = Counter(PurePosixPath(path).suffix.lower() for path in images.paths)
    formats = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common() if kind)
    if formats:
        found = f"{plural(len(images), 'image')} below {images.root}: {formats}"
    else:  # a named set
        found = f"{plural(len(images), 'image')} of {images.root}"
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
    found = f"{plural(len(names), 'class', 'classes')} of {sizes.min():,} to {plural(sizes.max(), 'image')}"
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


def _left_out(images: CodedImages) -> Finding:
    """Files that the search passed over, by kind."""
    entries = ledger_of(images).entries
    if not entries:
        return Finding("left out", "ok", f"nothing: all files below {images.root} are images")
    missing = tuple(dict.fromkeys(entry.advice for entry in entries if entry.advice))
    count = ledger_of(images).left_out
    listed = ", ".join(entry.counted for entry in entries)
    return Finding(
        "left out",
        "warning" if missing else "ok",
        f"{count:,} of {plural(count + len(images), 'file')}: {listed}",
        "; ".join(missing),
        tuple(name for entry in entries for name in entry.names),
    )


def _copies(images: CodedImages) -> Finding:
    """Files of equal bytes; in large sets and in shards, only files of one name are compared."""
    named = isinstance(images, ShardImages) or len(images) > copies.MOST
    compared = "of the same name " if named else ""
    if not (groups := copies.equal_images([images], named=named)):
        return Finding("copies", "ok", f"no two files {compared}are equal")
    pairs = tuple(" = ".join(images.paths[index] for _, index in group) for group in groups)
    more = sum(len(group) - 1 for group in groups)
    return Finding(
        "copies",
        "warning",
        f"{plural(more, 'file is a copy', 'files are copies')}{such_as(pairs)}",
        "remove the copies: each counts again, and labels conflict where copies are in several classes",
        pairs,
    )
