"""The pixels of the training images: one mapping for all, declared by the recipe or measured, the same on all ranks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from excb.console import Reporter, plural
from excb.distributed.collectives import run_on_rank0
from excb.errors import require
from excb.files import json_text
from excb.files.foreign import read_bytes
from excb.images.pixels import Colours, Pixels, pixels_of
from excb.images.survey import Survey, surveyed, with_pixels

from ..data.stream_images import StreamImages
from ..recipe import DataSettings


def with_their_pixels(images: Any, settings: DataSettings, reporter: Reporter, *, begun: Path | None = None) -> Any:
    """Training images with the one record of pixels that holds for all of them; all ranks call this.

    Args:
        images: the set, or a stream, whose first images are looked at.
        settings: of the recipe: what it declares.
        reporter: says what the images are, where they are not ordinary ones.
        begun: the recipe of the run so far, if it exists: a run that resumes keeps the range that was measured.

    Raises:
        UserError: no one mapping fits all images (`excb.images.survey.surveyed`), or a range is declared for 8 bits.
    """
    images = in_colours(images, settings.colours)

    def look() -> Survey:
        known = settings.pixels or (_measured_before(begun) if begun is not None else None)
        return surveyed(images.kept if isinstance(images, StreamImages) else images, known)

    survey = run_on_rank0(look)
    require(
        settings.channels in (None, 1, survey.pixels.channels),
        f"images of {plural(survey.pixels.channels, 'channel')} have not {settings.channels}: leave data.channels out",
    )
    require(
        settings.range is None or survey.deep,
        "all images have 8 bits, whose range is 0..255: leave data.range out",
    )
    if line := survey.line():
        reporter.note(line)
    return with_pixels(images, survey.pixels)


def in_colours(images: Any, colours: Colours) -> Any:
    """A set whose colours are converted by embedded profiles, or as they are stored."""
    return with_pixels(images, replace(pixels_of(images), colours=colours))


def _measured_before(begun: Path) -> Pixels | None:
    """The record of pixels in a run's recipe file, or None. A damaged file is refused by the run folder."""
    try:
        return Pixels.from_dict(json_text.parse(read_bytes(begun))["data"]["pixels"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
