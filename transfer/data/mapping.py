"""One mapping of stored values to channels for an evaluation: declared, the network's own, or measured."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from excb.errors import require
from excb.images.image_set import AnyImages, Images
from excb.images.pixels import EIGHT_BIT, Pixels, pixels_of
from excb.images.survey import Survey, on_mapping, surveyed, with_pixels
from excb.networks.preprocessing import Preprocessing

CLIPPED, UNUSED = 0.05, 0.25  # shares of images with values outside a range, and of a range, that contradict it

Say = Callable[[str], None]


def declared_pixels(text: str | None, channels: int | None, own: Pixels) -> Pixels | None:
    """The record that --range and --channels declare; None where neither is given. Raises UserError for no range."""
    if text is not None:
        return replace(Pixels.declared(text, channels or own.channels), colours=own.colours)
    if channels is None:
        return None
    return own if own.channels == channels else Pixels(channels, colours=own.colours)


def on_one_mapping(
    train: Images, test: Images, prepared: Preprocessing, declared: Pixels | None, *, note: Say, warn: Say
) -> tuple[Images, Images, Preprocessing]:
    """Train and test images, which may be one object, and their preprocessing: see `all_on_one_mapping`."""
    (first, second), preprocessing = all_on_one_mapping([train, test], prepared, declared, note=note, warn=warn)
    return first, second, preprocessing


def all_on_one_mapping(
    sets: Sequence[AnyImages],
    prepared: Preprocessing,
    declared: Pixels | None,
    *,
    note: Say,
    warn: Say,
    colours_of: str = "",
) -> tuple[list[AnyImages], Preprocessing]:
    """Sets of images and their preprocessing, with one record of pixels.

    It is the declared one; else that which the network was trained with; else it is measured on the first set.

    Args:
        sets: images; the range of the first is measured, of the train images. One object may be several of them.
        prepared: the network's own preprocessing.
        declared: see `declared_pixels`.
        note: called with a line about each set of other than ordinary images.
        warn: called with a line where images contradict the network's own range.
        colours_of: the protocol that reads them, if it takes grey and colour images only.

    Raises:
        UserError: no one mapping fits all images (`excb.images.survey.surveyed`).
    """
    own = prepared.pixels
    known = declared or (None if own.plain else own)
    in_colours = {id(images): with_pixels(images, replace(pixels_of(images), colours=own.colours)) for images in sets}
    sets = [in_colours[id(images)] for images in sets]
    train, first = sets[0], surveyed(sets[0], known, colours_of=colours_of)
    surveys = {id(train): (train, first)}
    for images in sets[1:]:
        if id(images) not in surveys:
            found = surveyed(images, first.pixels if first.deep else known, colours_of=colours_of)
            surveys[id(images)] = images, found
            require(
                first.deep == found.deep or known is not None,
                f"{_root(train if first.deep else images)} has images of more than 8 bits and "
                f"{_root(images if first.deep else train)} has none: declare the range of the former with --range "
                "LOW..HIGH if they show the same as the latter",
            )
    deep = next((found for _, found in surveys.values() if found.deep), None)
    require(
        # Pictures in memory are not looked at.
        declared is None or not declared.deep or deep is not None or not first.kinds,
        "all images have 8 bits, whose range is 0..255: leave --range out",
    )
    for _, survey in surveys.values():
        if line := survey.line("" if declared is not None or not own.deep else "the network's own "):
            note(line)
        if declared is None and own.deep and survey.deep and _contradicts(survey):
            warn(
                f"values {survey.low:,.6g} to {survey.high:,.6g} do not look like {own.range}, which the network was "
                "trained with: declare their range with --range LOW..HIGH if they are on another scale"
            )
    pixels = (deep or first).pixels
    if pixels == EIGHT_BIT:
        return list(sets), prepared
    mapped = {place: with_pixels(images, pixels) for place, (images, _) in surveys.items()}
    return [mapped[id(images)] for images in sets], replace(prepared, pixels=pixels)


def _root(images: Any) -> str:
    return str(images.root)


def like_the_others(images: Images, others: Images, *, note: Say) -> Images:
    """Further images on the mapping of those that an evaluation has opened.

    Raises:
        UserError: they have more bits, and the others do not.
    """
    pixels = pixels_of(others)
    ranges_of = "the train images' " if pixels.origin == "measured" else ""
    refusal = f" and {others.root} has none: leave it out"
    mapped: Images = on_mapping(images, pixels, note=note, ranges_of=ranges_of, refusal=refusal)
    return mapped


def _contradicts(survey: Survey) -> bool:
    """Whether values lie outside the range in many images, or leave most of it unused."""
    low, high = min(survey.pixels.low), max(survey.pixels.high)
    return survey.clipped > CLIPPED * survey.measured or survey.high - low < UNUSED * (high - low)
