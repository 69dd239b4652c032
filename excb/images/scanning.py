"""Folders searched for images, at any depth and in an order that depends on names only."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from excb.errors import UserError, nearest_path
from excb.images.image_set import EXTENSIONS, Images, ImageSet, ScannedImages


def scan_folder(folder: Path | str) -> ImageSet:
    """Find the images below a folder, at any depth, in an order that depends on their names only.

    If every image is in a sub-folder and there are at least two of them, the first-level sub-folders are the classes.
    Hidden files and folders are skipped.

    Raises:
        UserError: the folder is missing or holds no image, or a folder in it cannot be read.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"no folder {root}: name the folder that holds your images{nearest_path(root)}")
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
    """Every folder below `root` once, links followed: its path with a slash ("" for `root`), and its files.

    `os.walk` recurses at every level, and resolving every path anew would take quadratic time in the depth.
    """
    waiting, seen = [("", os.path.realpath(root))], set[str]()
    while waiting:
        below, real = waiting.pop()
        if real in seen:  # a link back into the tree
            continue
        seen.add(real)
        try:
            with os.scandir(root / below) as listing:
                # lost+found is the file system's own folder at the top of a disk, which only root can read.
                shown = [entry for entry in listing if not entry.name.startswith(".") and entry.name != "lost+found"]
                entries = sorted(shown, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):  # it has just gone
            continue
        except OSError as error:
            raise _unreadable(root / below, error) from None
        folders = {entry.name: entry for entry in entries if is_folder(entry)}
        yield below, [entry.name for entry in entries if entry.name not in folders]
        for name, entry in reversed(folders.items()):
            there = os.path.realpath(entry.path) if entry.is_symlink() else f"{real}/{name}"
            waiting.append((f"{below}{name}/", there))


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one. Raises UserError if a link's target cannot be read."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:  # a link to itself is not a folder
            raise _unreadable(entry.path, error) from None
        return False


def _unreadable(place: Path | str, error: OSError) -> UserError:
    # Skipping it would silently leave out images, or a whole class.
    return UserError(f"cannot read {place} ({error.strerror}): allow reading it, or move it out of the images")


def refuse_among(images: Images, out: Path) -> None:
    """Raise UserError if `out` is in a scanned folder and not hidden: the next scan would count its pictures."""
    place = out.resolve()
    for folder in images.scanned_folders if isinstance(images, ScannedImages) else ():
        root = folder.resolve()
        if place.is_relative_to(root) and not any(part.startswith(".") for part in place.relative_to(root).parts):
            raise UserError(
                f"--out in {out} is among the images of {folder}, and its pictures would be counted with them: "
                "name a place outside that folder"
            )
