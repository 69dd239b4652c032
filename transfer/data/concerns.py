"""Concerns about a train and a test set that can both be used: likely mistakes that a figure would hide."""

import os
from pathlib import Path

from excb.console import plural
from excb.files.foreign import is_folder
from excb.images import copies
from excb.images.image_set import FiledImages, Images, ImageSet
from excb.ledger import NOTHING, Ledger, LedgerEntry, doubt

OLD = "figures on copies say nothing about new images"


def concerns(train: Images, test: Images) -> Ledger:
    """The ledger of both sets together, beside what their scans left out."""
    found = NOTHING
    for name, images in (("train", train), ("test", test)):
        found += _empty_folders(images).of(name)
    if len(train) < len(test):
        fewer = f"images, fewer than the {len(test):,} of test"
        found += Ledger((LedgerEntry(fewer, len(train), (), "are the two swapped?", left_out=False, of="train"),))
    return found + _unseen_classes(train, test) + _copies(train, test)


def _empty_folders(images: Images) -> Ledger:
    """Class folders without an image, which are not classes."""
    root = Path(images.root)
    if not isinstance(images, ImageSet) or images.labels is None or not images.scanned or not root.is_dir():
        return NOTHING
    known = {path.partition("/")[0] for path in images.paths}
    with os.scandir(root) as entries:
        empty = sorted(
            entry.name
            for entry in entries
            if is_folder(entry) and not entry.name.startswith(".") and entry.name not in known
        )
    return doubt("class folders without an image", empty, "not taken for classes")


def _unseen_classes(train: Images, test: Images) -> Ledger:
    """Classes of the train set that no test image has."""
    if train.labels is None or test.labels is None or train.labels.ndim > 1 or test.labels.ndim > 1:
        return NOTHING
    seen = set(test.labels.tolist())
    unseen = [name for number, name in enumerate(train.classes or ()) if number not in seen]
    return doubt("classes without a test image", unseen, "not covered by any figure", of="test")


def _copies(train: Images, test: Images) -> Ledger:
    """Images whose very file is in the sets more than once, whatever its name, and test images like a train image."""
    if not isinstance(train, FiledImages) or not isinstance(test, FiledImages):
        return NOTHING
    if len(train) + len(test) > copies.MOST:
        return _unsearched(
            len(train) + len(test), f"images, more than the {copies.MOST:,} that are searched for copies"
        )
    if near := copies.comparable((train, test)):
        copies.look_once((train, test))
    again: dict[str, list[str]] = {"train": [], "test": []}
    between = dict[int, str]()
    for group in copies.equal_images((train, test)):
        for number, (name, images) in enumerate((("train", train), ("test", test))):
            same = [index for place, index in group if place == number]
            again[name] += [f"{images.paths[index]} = {images.paths[same[0]]}" for index in same[1:]]
        if group[0][0] == 0:  # its first image is one of train
            between |= {index: f"{test.paths[index]} = {train.paths[group[0][1]]}" for place, index in group if place}
    found = NOTHING
    for name, same_bytes in again.items():
        found += doubt("files that the set holds under another name too", same_bytes, "each counts again", of=name)
    same_files = [between[index] for index in sorted(between)]
    found += doubt(f"of {plural(len(test), 'image')} are among the train images too", same_files, OLD, of="test")
    if not near:
        most = f"images, more than the {copies.MOST_NEAR:,} (or 1 GiB) that are searched for near-copies"
        return found + _unsearched(len(train) + len(test), most)
    like = [(index, other) for index, other in copies.near_copies(train, test) if index not in between]
    pairs = [f"{test.paths[index]} ~ {train.paths[other]}" for index, other in like]
    return found + doubt(f"of {plural(len(test), 'image')} look like a train image", pairs, OLD, of="test")


def _unsearched(images: int, reason: str) -> Ledger:
    return Ledger((LedgerEntry(reason, images, (), "excb-eval overlap searches them", left_out=False),))
