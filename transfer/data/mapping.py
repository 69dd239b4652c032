"""One mapping of stored values to channels for an evaluation: declared, the network's own, or measured."""

from collections.abc import Callable
from dataclasses import replace

from excb.errors import require
from excb.images.image_set import Images
from excb.images.pixels import EIGHT_BIT, Pixels, pixels_of
from excb.images.survey import Survey, surveyed, with_pixels
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
    """Train and test images and their preprocessing, with one record of pixels.

    It is the declared one; else that which the network was trained with; else it is measured on the train images.

    Args:
        train: images; their range is measured.
        test: others, or the same object.
        prepared: the network's own preprocessing.
        declared: see `declared_pixels`.
        note: called with a line about each set of other than ordinary images.
        warn: called with a line where images contradict the network's own range.

    Raises:
        UserError: no one mapping fits all images (`excb.images.survey.surveyed`).
    """
    own = prepared.pixels
    known = declared or (None if own.plain else own)
    same, train = test is train, with_pixels(train, replace(pixels_of(train), colours=own.colours))
    test = train if same else with_pixels(test, replace(pixels_of(test), colours=own.colours))
    first = surveyed(train, known)
    second = first if test is train else surveyed(test, first.pixels if first.deep else known)
    require(
        first.deep == second.deep or known is not None,
        f"{(train if first.deep else test).root} has images of more than 8 bits and "
        f"{(test if first.deep else train).root} has none: declare the range of the former with --range LOW..HIGH if "
        "they show the same as the latter",
    )
    deep = first.deep or second.deep
    require(
        declared is None or not declared.deep or deep or not first.kinds,  # pictures in memory are not looked at
        "all images have 8 bits, whose range is 0..255: leave --range out",
    )
    for survey in [first] if second is first else [first, second]:
        if line := survey.line("" if declared is not None or not own.deep else "the network's own "):
            note(line)
        if declared is None and own.deep and survey.deep and _contradicts(survey):
            warn(
                f"values {survey.low:,.6g} to {survey.high:,.6g} do not look like {own.range}, which the network was "
                "trained with: declare their range with --range LOW..HIGH if they are on another scale"
            )
    pixels = first.pixels if first.deep or not second.deep else second.pixels
    if pixels == EIGHT_BIT:
        return train, test, prepared
    mapped = with_pixels(train, pixels)
    return mapped, mapped if test is train else with_pixels(test, pixels), replace(prepared, pixels=pixels)


def _contradicts(survey: Survey) -> bool:
    """Whether values lie outside the range in many images, or leave most of it unused."""
    low, high = min(survey.pixels.low), max(survey.pixels.high)
    return survey.clipped > CLIPPED * survey.measured or survey.high - low < UNUSED * (high - low)
