"""Labels of a flat folder of images from a list beside it: "NAME INDEX" or "NAME CLASS" on every line."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from excb.console import plural
from excb.errors import UserError, require
from excb.files.csv_text import read_listing
from excb.images.image_set import Images, ImageSet
from excb.sources.label_files import by_image


def list_beside(folder: Path) -> Path | None:
    """The list of a folder, in it or beside it: FOLDER.txt or imagenet_FOLDER.txt; None if there is none."""
    names = (f"{folder.name}.txt", f"imagenet_{folder.name}.txt")
    files = (place / name for place in (folder, folder.parent) for name in names)
    return next((file for file in files if file.is_file()), None)


def labelled_by_list(images: ImageSet, train: Images, file: Path) -> ImageSet:
    """Labels of a flat folder by a list of names and class indices or names."""
    classes = train.classes or ()
    label_of = by_image(_read_labels(file, prefix=f"{images.root.name}/"), set(images.paths))
    for one, other, noun, place, elsewhere in (
        (images.paths, label_of.keys(), "image", images.root, file),
        (label_of.keys(), set(images.paths), "name", file, images.root),
    ):
        if left := [name for name in one if name not in other]:
            missing = f"{plural(len(left), noun)} of {place} not in {elsewhere}"
            raise UserError(f"{missing}, such as {left[0]}: the list needs one line for every image")
    if set(label_of.values()) <= set(classes):
        index = {name: number for number, name in enumerate(classes)}
    else:
        index = {str(number): number for number in range(len(classes))}
    if wrong := sorted(set(label_of.values()) - index.keys()):
        raise UserError(
            f"{file} has the class {wrong[0]}: it needs indices from 0 to {len(classes) - 1} in the order of the train "
            "set's folders, or these folders' names"
        )
    return replace(images, labels=np.array([index[label_of[path]] for path in images.paths]), classes=tuple(classes))


def _read_labels(file: Path, *, prefix: str) -> dict[str, str]:
    try:
        lines = [line for line in read_listing(file).splitlines() if line.strip()]
    except OSError as error:
        raise UserError(f"cannot read the list {file}: {error}") from None
    labels: dict[str, str] = {}
    for line in lines:
        parts = line.rsplit(maxsplit=1)
        require(len(parts) == 2, f"{file}: '{line.strip()}' is not an image's name and its class")
        name = parts[0].strip().removeprefix("./").removeprefix(prefix)
        require(name not in labels, f"{file} names {name} more than once: remove the repeats")
        labels[name] = parts[1]
    return labels
