"""Smaller copies of large photographs: a run that reads those is not held up by decoding."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from excb.console import Reporter, plural
from excb.distributed.machine import usable_cores
from excb.errors import UserError, require
from excb.files.atomic import check_writable_folder, new_file
from excb.images.decoding import BrokenImageError, open_smaller, stored_and_upright_size
from excb.images.image_set import ImageSet, clipped_ledger
from excb.images.pixels import Pixels, notice_of
from excb.images.scanning import find_images, scan_folder
from excb.images.survey import surveyed, with_pixels
from excb.sources.label_files import copied_name

QUALITY = 95  # of JPEGs
CHUNK = 256  # files that are queued at once


@dataclass(frozen=True)
class Shrunk:
    """The outcome for the images of a folder."""

    written: int
    kept: int  # copies that were there already
    broken: tuple[str, ...]  # names and reasons
    bytes_before: int  # of all that have a copy
    bytes_after: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "broken": list(self.broken)}


def shrink_folder(folder: Path, out: Path, reporter: Reporter, *, side: int, pixel_range: str | None = None) -> Shrunk:
    """Write a copy of every image below `folder` into `out`, upright, with a shorter side of at most `side` pixels.

    Sub-folders and names stay. Copies are JPEGs: one of another format has `.jpg` added to its name, under which tables
    of labels of the originals find it. Files that are
    small enough are copied as they are, unless they have more than 8 bits. The same call continues one that was
    stopped.

    Args:
        folder: of the images.
        out: of the copies.
        reporter: for notes and progress.
        side: pixels of a copy's shorter side.
        pixel_range: LOW..HIGH of images of more than 8 bits, which become copies of 8 bits; measured by default.

    Raises:
        UserError: there are no images, a place cannot be read or written, one folder is in the other, two images would
            have the same copy, or other images or copies of another size are there.
    """
    source, target = folder.resolve(), out.resolve()
    if source.is_relative_to(target) or target.is_relative_to(source):
        raise UserError(f"{out} and {folder} are one inside the other: name an --out beside {folder}")
    scanned = scan_folder(folder)
    scanned.ledger.tell(reporter)
    declared = None if pixel_range is None else Pixels.declared(pixel_range)
    survey = surveyed(scanned, declared, colours_of="shrink")
    require(declared is None or survey.deep, "all images have 8 bits, whose range is 0..255: leave --range out")
    if line := survey.line():
        reporter.note(line)
    images: ImageSet = with_pixels(scanned, survey.pixels)
    names = set(images.paths)
    for name in images.paths:
        if (shared := copied_name(name)) != name and shared in names:
            raise UserError(f"{name} and {shared} in {folder} would have the same copy: rename one of them")
    _refuse_others(images, out)
    check_writable_folder(out)
    written = kept = before = after = 0
    broken = []
    # Threads suffice: decoding and resizing release the interpreter's lock.
    with (
        ThreadPoolExecutor(usable_cores()) as threads,
        reporter.progress(f"copies of {side} pixels", len(images)) as bar,
    ):
        for start in range(0, len(images), CHUNK):
            indices = range(start, min(start + CHUNK, len(images)))
            for index, copied in zip(indices, threads.map(lambda i: _copy(images, i, out, side), indices), strict=True):
                bar.advance()
                if isinstance(copied, str):
                    broken.append(copied)
                    continue
                copy, is_new = copied
                written, kept = written + is_new, kept + (not is_new)
                before += images.file(index).stat().st_size
                after += copy.stat().st_size
    clipped_ledger(images).tell(reporter)
    return Shrunk(written, kept, tuple(broken), before, after)


def _copy(images: ImageSet, index: int, out: Path, side: int) -> tuple[Path, bool] | str:
    """The copy of one image and whether it was made now; a text for one that cannot be read."""
    name, file = images.paths[index], images.file(index)
    smaller = out / copied_name(name)
    try:
        for place in (smaller, out / name):
            if place.exists():
                _check_size(place, file, side)
                return place, False
        smaller_by = partial(_divisor_of, side=side)
        image, (width, height) = open_smaller(file, smaller_by, images.pixels, notice_of(images, index))
    except BrokenImageError as error:
        return f"{name} ({error})"
    if min(width, height) <= side and not images.pixels.deep:
        with new_file(out / name) as temporary:
            shutil.copyfile(file, temporary)
        return out / name, True
    scale = min(1.0, side / min(width, height))
    image = image.resize((round(width * scale), round(height * scale)), Image.Resampling.LANCZOS)
    with new_file(smaller) as temporary:
        image.save(temporary, "JPEG", quality=QUALITY, subsampling=0)
    return smaller, True


def _refuse_others(images: ImageSet, out: Path) -> None:
    """Raise UserError if images are in `out` that are not copies of these: a run would train on them, too."""
    if not out.is_dir():
        return
    copies = {*images.paths, *map(copied_name, images.paths)}
    if others := sorted(set(find_images(out)[0]) - copies):
        raise UserError(
            f"{out} holds {plural(len(others), 'image')} without an original in {images.root}, such as {others[0]}: "
            "name an --out without other images"
        )


def _check_size(copy: Path, file: Path, side: int) -> None:
    """Raise UserError if a copy that is there has another size than one that would be made now."""
    there, original = (min(stored_and_upright_size(each)[1]) for each in (copy, file))
    if there != min(original, side):
        raise UserError(
            f"{copy} has {there} pixels and not {min(original, side)}: choose another --out for other copies"
        )


def _divisor_of(size: tuple[int, int], side: int) -> int:
    return _divisor(min(size), side)


def _divisor(shorter: int, side: int) -> int:
    """How much smaller a JPEG may be decoded, with twice the pixels of its copy left for the resampling."""
    return next((divisor for divisor in (8, 4, 2) if shorter // divisor >= 2 * side), 1)
