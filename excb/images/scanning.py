"""Folders searched for images, at any depth and in an order that depends on names only."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from excb.errors import UserError, nearest_path
from excb.files.foreign import is_folder, unreadable
from excb.images.formats import video
from excb.images.formats.known import EXTENSIONS, Kind, extension_of, kind_of_extension, kind_of_file
from excb.images.formats.plugins import Extra
from excb.images.image_set import Images, ImageSet, ScannedImages
from excb.ledger import Ledger, Tally
from excb.results.pictures import pictures_of_results

AGAIN = "links to a folder above them, or to one that is searched already"


def scan_folder(folder: Path | str, *, every: float | None = None) -> ImageSet:
    """Find the images below a folder, at any depth, in an order that depends on their names only.

    If every image is in a sub-folder and there are at least two of them, the first-level sub-folders are the classes.
    Files are images by their extension, and by their first bytes where that says nothing. NumPy arrays are images where
    there are no others. The set's ledger counts everything else, also hidden files and folders, and pictures of results
    that earlier commands wrote there.

    A link to a folder elsewhere is followed, once. One that leads to a folder which is searched anyway, or above the
    link, is not: its images would be taken twice, or images that nobody named.

    Args:
        folder: to search.
        every: seconds between the frames that are taken of each video; None takes none.

    Raises:
        UserError: the folder is missing or holds no image, or a folder in it cannot be read.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"no folder {root}: name the folder that holds your images{nearest_path(root)}")
    paths, ledger = find_images(root, every=every)
    if not paths:
        tars = f"; name tars as '{root}/*.tar'" if any(root.glob("*.tar")) else ""
        found = "".join(f" ({line})" for line in ledger.lines())
        raise UserError(f"no image below {root}: it needs files ending in {' '.join(EXTENSIONS)}{found}{tars}")
    paths.sort(key=None if every is None else video.in_order)
    tops = [path.split("/", 1)[0] for path in paths]
    classes = tuple(sorted(set(tops)))
    if len(classes) < 2 or any("/" not in path for path in paths):
        return ImageSet(root, paths, scanned=True, ledger=ledger)
    index = {name: number for number, name in enumerate(classes)}
    return ImageSet(root, paths, np.array([index[top] for top in tops]), classes, scanned=True, ledger=ledger)


def find_images(root: Path, *, every: float | None = None) -> tuple[list[str], Ledger]:
    """The paths of the images below a folder, in no order, and a ledger of all else; `every` as of `scan_folder`.

    Raises:
        UserError: a folder in it cannot be read.
    """
    paths, arrays, tally = list[str](), list[str](), Tally()
    usual = set[str]()  # endings of names, as they are typed: most files take one look
    for below, files in _walk(root, tally):
        for entry in _without_pictures_of_results(root, below, files, tally):
            name = entry.name
            if name[name.rfind(".") :] in usual:
                paths.append(below + name)
                continue
            extension = extension_of(name)
            kind = kind_of_extension(extension)
            if kind is Kind.IMAGE:
                usual.add(name[-len(extension) :])
            elif kind is Kind.UNKNOWN:
                kind = kind_of_file(entry)
            if kind is Kind.IMAGE:
                paths.append(below + name)
            elif kind is Kind.ARRAY:
                arrays.append(below + name)
            else:
                paths += _frames_or_none(root, below + name, kind, every, tally)
    if not paths:
        return arrays, tally.ledger()
    for array in arrays:
        tally.add(extension_of(array), array, "arrays are images where a folder holds no others")
    return paths, tally.ledger()


def _without_pictures_of_results(
    root: Path, below: str, files: list[os.DirEntry[str]], tally: Tally
) -> list[os.DirEntry[str]]:
    """The files of a folder, less the pictures that commands drew beside results: they are in nobody's set."""
    drawn = pictures_of_results(root / below, [entry.name for entry in files], named=not below)
    for name in sorted(drawn):
        tally.add("pictures of results", below + name)
    return [entry for entry in files if entry.name not in drawn] if drawn else files


def _frames_or_none(root: Path, path: str, kind: Kind | Extra, every: float | None, tally: Tally) -> list[str]:
    """Paths of the frames of a video, if they are wanted; else none, and the file is counted."""
    extension, advice = extension_of(path), "" if isinstance(kind, Kind) else kind.advice
    if every is not None and extension in video.EXTENSIONS:
        try:
            return video.frame_paths(root / path, path, every)
        except OSError:
            advice = "it cannot be read" if video.is_installed() else video.ADVICE
    tally.add(extension or "without extension", path, advice)
    return []


def _walk(root: Path, tally: Tally) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """Every folder below `root` once: its path with a slash ("" for `root`), and its files.

    `os.walk` recurses at every level, and resolving every path anew would take quadratic time in the depth.
    """
    top = os.path.realpath(root)
    waiting, seen = [("", top)], set[str]()
    while waiting:
        below, real = waiting.pop()
        if real in seen:  # by another link
            tally.add(AGAIN, below.rstrip("/"))
            continue
        seen.add(real)
        try:
            with os.scandir(root / below) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):  # it has just gone
            continue
        except OSError as error:
            raise unreadable(root / below, error) from None
        files, folders = list[os.DirEntry[str]](), list[tuple[str, str]]()
        for entry in entries:
            # lost+found is the file system's own folder at the top of a disk, which only root can read.
            if entry.name.startswith(".") or entry.name == "lost+found":
                tally.add(
                    "hidden folders" if entry.is_dir(follow_symlinks=False) else "hidden files", below + entry.name
                )
            elif not is_folder(entry):
                files.append(entry)
            elif not entry.is_symlink():
                folders.append((f"{below}{entry.name}/", f"{real}/{entry.name}"))
            elif _leads_back(there := os.path.realpath(entry.path), real, top):
                tally.add(AGAIN, below + entry.name)
            else:
                folders.append((f"{below}{entry.name}/", there))
        yield below, files
        waiting.extend(reversed(folders))


def _leads_back(there: str, link: str, top: str) -> bool:
    """Whether a link's target is above the folder that holds it, or below the top folder and not hidden there."""
    if f"{link}/".startswith(f"{there.rstrip('/')}/"):
        return True
    inside = there.removeprefix(f"{top}/")
    return inside != there and not any(part.startswith(".") for part in inside.split("/"))


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
