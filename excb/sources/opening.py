"""The images that `--data` and `--list` name: a folder, shards, a named data set, or a list of files."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from excb.errors import UserError
from excb.files.csv_text import read_listing
from excb.images.image_set import CodedImages, ImageSet, ledger_of
from excb.images.scanning import scan_folder
from excb.images.shards import Note, open_shards
from excb.images.tars.places import holds_shards, is_shards, names_tars
from excb.remote import byte_ranges
from excb.sources.table import source_of

T = TypeVar("T")
LOOKED_AT = 8  # first files of a list: if all are missing, its paths start elsewhere, or its lines hold more than paths


def training_images(
    data: str | None, listed: Path | None, note: Note = lambda _line: None, *, ledger: bool = True
) -> CodedImages:
    """The images that a run trains on: those of a list, or what `open_images` finds.

    Args:
        data: a folder, shards or a named set; with a list, the folder of its paths.
        listed: a file with one path a line.
        note: called with messages when shards are indexed, and with the lines of the ledger.
        ledger: False leaves the lines of the ledger to the caller.

    Raises:
        UserError: there are none, they cannot be used, or a list starts with missing files.
    """
    if listed is None:
        assert data is not None
        found = open_images(data, note)
        for line in ledger_of(found).lines() if ledger else ():
            note(line)
        return found
    if data is not None and (is_shards(data) or source_of(data) is not None):
        raise UserError(f"--list names files, and {data} holds none: leave one of them out")
    images = read_list(listed, data)
    if all(images.stamp(index) == "none" for index in range(min(len(images), LOOKED_AT))):
        starts = "--data" if data is not None else "the list's own folder, or from --data where that is given"
        raise UserError(
            f"the list {listed} names {images.paths[0]}, but there is no file {images.file(0)}: its paths start from "
            f"{starts}, one a line with nothing else"
        )
    return images


def open_images(text: str, note: Note = lambda _line: None) -> CodedImages:
    """The images that a text names: a folder of images, or shards. A folder train/ inside either is used instead.

    Inside a folder that is called train itself, it is a class. Of torchvision:NAME and hf:ID it is the training images.
    Opening these is collective.

    Raises:
        UserError: there are none, or they cannot be used.
    """
    if (named := source_of(text)) is not None:
        source, name = named
        assert source.training is not None
        return source.training(name, None, note)
    if not is_shards(text):
        inside = Path(text) / "train"
        if not inside.is_dir() or Path(text).absolute().name == "train":
            return scan_folder(text)
        return open_shards(str(inside), note) if is_shards(str(inside)) else scan_folder(inside)
    if byte_ranges.is_remote(text) and not names_tars(text) and holds_shards(inside_url := f"{text.rstrip('/')}/train"):
        return open_shards(inside_url, note)
    return open_shards(text, note)


def opened_by_all(data: str | None, make: Callable[[], T]) -> T:
    """Images that `make` opens, on all ranks, which all call this.

    Rank 0 alone lists files and sends the list: a million names listed by many processes would be slow on a network's
    disk. A named set is opened by every rank, and downloaded by rank 0.

    Raises:
        UserError: as `make` on rank 0.
    """
    from excb.distributed.collectives import run_on_rank0  # here: finding images needs no torch

    return make() if data is not None and source_of(data) is not None else run_on_rank0(make)


def read_list(file: Path | str, root: Path | str | None = None) -> ImageSet:
    """Read a list of image paths, one a line, relative to `root` or by default to the list's own folder.

    The set has no labels and keeps the order of the list. Empty lines and lines that start with # are skipped.

    Raises:
        UserError: the list is missing or empty, or names a file twice.
    """
    file = Path(file)
    try:
        lines = read_listing(file).splitlines()  # Windows editors put a mark before the first line
    except OSError as error:
        raise UserError(f"cannot read the list {file}: {error}") from None
    paths = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not paths:
        raise UserError(f"the list {file} names no image: write one path a line")
    path, times = Counter(paths).most_common(1)[0]
    if times > 1:
        raise UserError(f"the list {file} names {path} more than once: remove the repeats")
    return ImageSet(Path(root) if root is not None else file.parent, paths)
