"""Where labelled images come from: folders, ImageNet's layouts, tar shards, torchvision, the Hugging Face Hub."""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from excb.errors import UserError, require
from excb.images.image_set import Images, ImageSet, is_folder, scan_folder
from excb.images.shard_places import holds_shards, is_shards, names_tars
from excb.images.shards import ShardImages, open_images, open_shards
from excb.remote.byte_ranges import is_remote

from .classes import labelled, with_classes_of
from .hub_sets import open_hub
from .named_sets import Note, Split
from .torchvision_sets import open_torchvision, torchvision_name

_NO_IMAGES = "name the images with --data DIR (train/ and test/ inside), or with --train DIR --test DIR"


def train_and_test(
    data: str | None,
    train: Path | str | None = None,
    test: Path | str | None = None,
    *,
    rename: Mapping[str, str] | None = None,
    data_root: Path | None = None,
    note: Note = lambda _line: None,
) -> tuple[Images, Images]:
    """The two sets that a command line names, with the train set's class indices in both.

    Args:
        data: what `open_source` takes.
        train: a folder of training images, or shards (`excb.images.shards.open_shards`), instead of the source's.
        test: a folder of test images, or shards, instead of the source's. A folder without class folders may have a
            list beside it: FOLDER.txt or imagenet_FOLDER.txt, with a line "NAME INDEX" or "NAME CLASS" for every image.
        rename: folders of the test set that are called otherwise in the train set.
        data_root: where torchvision's data sets lie.
        note: told what the user should know.

    Raises:
        UserError: one of the sets is missing or unusable, or their classes do not match.
    """
    if data is None and (train is None or test is None):
        raise UserError(_NO_IMAGES)
    known = _labelled(train, note) if train else open_source(data or "", "train", data_root=data_root, note=note)
    if test is None and data is not None and _kind(data) in ("folder", "shards"):
        test = _held_out(_existing(data))
    if test is not None:
        return known, _test_images(test, known, rename or {}, note)
    require(not rename, "--rename is for folders of test images: name them with --test DIR")
    held_out = open_source(data or "", "test", data_root=data_root, note=note)
    if held_out.classes != known.classes:
        raise UserError(f"{held_out.root} and {known.root} have other classes: name a test set with the same ones")
    return known, held_out


def open_source(text: str, split: Split, *, data_root: Path | None = None, note: Note = lambda _line: None) -> Images:
    """One split of a source of labelled images.

    Args:
        text: a folder or a URL that holds train/ and test/ (or val/), with images or shards in them; torchvision:NAME;
            hf:ID or hf:ID@CONFIG. Where a data set of torchvision has train and validation images, both are for
            training, as Kornblith et al. (2019) do.
        split: which images.
        data_root: where torchvision's data sets lie; else $EXCB_DATA, else ~/.cache/excb/datasets.
        note: told what the user should know.

    Raises:
        UserError: there is no such source, or it cannot be had.
    """
    kind, name = _kind(text), text.partition(":")[2]
    if kind == "torchvision":
        return open_torchvision(name, split, data_root or _data_root(), note)
    if kind == "hf":
        return open_hub(name, split, note)
    folder = _existing(text)
    if split == "train":
        train = _below(folder, "train")
        if not is_remote(folder) and not Path(train).is_dir():
            raise UserError(
                f"no folder {train}: --data names a folder that holds train/ and test/ (or val/); name others with "
                "--train DIR --test DIR"
            )
        return _labelled(train, note)
    held_out = _held_out(folder)
    return open_shards(held_out, note) if is_shards(held_out) else scan_folder(held_out)


def images_of(text: str, *, data_root: Path | None = None, note: Note = lambda _line: None) -> Images:
    """The images of one source, with labels where it has classes.

    Args:
        text: a folder of images, or one that holds train/ beside test/ or val/, whose train/ is then taken; shards; or
            a data set, as `open_source` takes it, whose training images are taken.
        data_root: where torchvision's data sets lie.
        note: told what the user should know.

    Raises:
        UserError: there is no such source, or it cannot be had.
    """
    if (kind := _kind(text)) not in ("folder", "shards"):
        return open_source(text, "train", data_root=data_root, note=note)
    if kind == "shards":
        return open_images(text, note)
    folder = Path(_existing(text))
    if (folder / "train").is_dir() and any((folder / name).is_dir() for name in ("test", "val")):
        folder = folder / "train"
        note(f"images of {folder}: name another folder of {text} for its other images")
    return open_shards(str(folder), note) if is_shards(str(folder)) else scan_folder(folder)


def _kind(text: str) -> str:
    prefix = text.partition(":")[0].lower()
    if ":" in text and prefix in ("torchvision", "hf"):
        return prefix
    return "shards" if is_shards(text) else "folder"


def _data_root() -> Path:
    return Path(os.environ.get("EXCB_DATA") or Path.home() / ".cache" / "excb" / "datasets").expanduser()


# ---------------------------------------------------------------------------------------------------------------------
# Folders, and ImageNet in its usual layouts
# ---------------------------------------------------------------------------------------------------------------------

# sha256 of ImageNet's 1,000 sorted class folders, one a line: the class order of every ImageNet classifier.
_IMAGENET = "385e0240499426c022b773be1ae4da780f057b89c9694c7f47199f62746b6edd"


def _existing(text: str) -> str:
    """A folder that can hold train/ and test/, or its URL."""
    folder = Path(text)
    if is_remote(text) and not names_tars(text):
        return text.rstrip("/")
    if is_shards(text):
        raise UserError(f"{text} names shards, of train or test images: name both, with --train SHARDS --test SHARDS")
    if not folder.is_dir():
        meant = f" (or did you mean torchvision:{text}?)" if torchvision_name(text) else ""
        raise UserError(
            f"no folder {folder}{meant}: --data names a folder that holds train/ and test/ (or val/), torchvision:NAME "
            "or hf:ID"
        )
    return text


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if is_remote(folder) else str(Path(folder) / name)


def _held_out(folder: str) -> str:
    """test/, or else val/: also where test/ is ImageNet's own, without any labels."""
    test, val = _below(folder, "test"), _below(folder, "val")
    if is_remote(folder):
        return test if holds_shards(test) else val
    place = Path(test)
    known = place.is_dir() and (_has_folders(place) or _list_beside(place) or is_shards(test))
    return test if known or (place.is_dir() and not Path(val).is_dir()) else val


def _has_folders(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(is_folder(entry) and not entry.name.startswith(".") for entry in entries)


def _labelled(folder: Path | str, note: Note) -> ImageSet | ShardImages:
    """Class folders or labelled shards, the classes in order: by number if all are numbers, else by name."""
    images = _labelled_shards(str(folder), note) if is_shards(str(folder)) else labelled(Path(folder))
    assert images.labels is not None
    classes = images.classes or ()
    if all(name.isascii() and name.isdecimal() for name in classes):
        ordered = sorted(classes, key=lambda name: (int(name), name))
        if tuple(ordered) != classes:
            note(f"the classes in {folder} are numbers: their order is {ordered[0]}, {ordered[1]} ... {ordered[-1]}")
            index = np.array([ordered.index(name) for name in classes])
            return replace(images, labels=index[images.labels], classes=tuple(ordered))
    if _are_wnids(classes) and hashlib.sha256("\n".join(classes).encode()).hexdigest() != _IMAGENET:
        note(f"{folder} has {len(classes):,} classes that are not ImageNet's 1,000: indices are of these, by name")
    return images


def _labelled_shards(text: str, note: Note) -> ShardImages:
    images = open_shards(text, note)
    require(
        images.labels is not None,
        f"the images in {text} have no classes: shards need KEY.cls beside every KEY.jpg, or class folders inside",
    )
    return images


def _are_wnids(classes: Sequence[str]) -> bool:
    """Whether these are called as ImageNet's class folders are; their order by name is then the usual one."""
    return all(re.fullmatch(r"n\d{8}", name) for name in classes)


def _test_images(place: Path | str, train: Images, rename: Mapping[str, str], note: Note) -> ImageSet | ShardImages:
    """Test images by class folders, by shards' labels or by a list, with the train set's class indices."""
    if is_shards(str(place)):
        return with_classes_of(_labelled_shards(str(place), note), train, rename=rename)
    folder = Path(place)
    images = scan_folder(folder)
    if not any("/" in path for path in images.paths):
        if (file := _list_beside(folder)) is not None:
            require(not rename, f"--rename: the images in {folder} lie in no folders, {file} gives their classes")
            return _listed(images, train, file)
        if _are_wnids(train.classes or ()):
            raise UserError(
                f"{folder} has no class folders: put its images into them, or write {folder.name}.txt beside it with "
                "a line 'NAME INDEX' (0 to 999 in the order of the folders) or 'NAME FOLDER' for every image"
            )
    return with_classes_of(images, train, rename=rename)


def _list_beside(folder: Path) -> Path | None:
    names = (f"{folder.name}.txt", f"imagenet_{folder.name}.txt")
    files = (place / name for place in (folder, folder.parent) for name in names)
    return next((file for file in files if file.is_file()), None)


def _listed(images: ImageSet, train: Images, file: Path) -> ImageSet:
    """Labels of a flat folder by a list of names and class indices or names."""
    classes = train.classes or ()
    given = _read_labels(file, prefix=f"{images.root.name}/")
    for one, other, words in (
        (images.paths, given.keys(), f"images in {images.root} are not in {file}"),
        (given.keys(), set(images.paths), f"names in {file} are not in {images.root}"),
    ):
        if left := [name for name in one if name not in other]:
            raise UserError(f"{len(left):,} {words}, such as {left[0]}: it needs one line for every image")
    if set(given.values()) <= set(classes):
        index = {name: number for number, name in enumerate(classes)}
    else:
        index = {str(number): number for number in range(len(classes))}
    if wrong := sorted(set(given.values()) - index.keys()):
        raise UserError(
            f"{file} has the class {wrong[0]}: it needs indices from 0 to {len(classes) - 1} in the order of the train "
            "set's folders, or these folders' names"
        )
    return replace(images, labels=np.array([index[given[path]] for path in images.paths]), classes=tuple(classes))


def _read_labels(file: Path, *, prefix: str) -> dict[str, str]:
    """Class by image name."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the list {file}: {error}") from None
    labels: dict[str, str] = {}
    for line in lines:
        parts = line.rsplit(maxsplit=1)
        require(len(parts) == 2, f"{file}: '{line.strip()}' is not an image's name and its class")
        name = parts[0].strip().removeprefix("./").removeprefix(prefix)
        require(name not in labels, f"{file} names {name} more than once: remove the repeats")
        labels[name] = parts[1]
    return labels
