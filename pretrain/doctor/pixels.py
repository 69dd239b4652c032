"""Depth, channels and range of the images, whether one mapping fits all of them, and their colour profiles."""

from collections import Counter

import numpy as np

from excb.console import plural
from excb.errors import UserError
from excb.images import depth
from excb.images.decoding import BrokenImageError
from excb.images.digests import digests_of, files_of
from excb.images.image_set import CodedImages
from excb.images.survey import surveyed

from ..recipe import DataSettings
from .finding import Finding

SAMPLE = 500  # images whose colour profiles are looked at
LEVELS = 64  # of 256, below which much of what an image shows is lost
CLIPPED = 0.05  # share of images with values outside the range from which that is
VALUES = "values"  # the finding of one mapping for all


def check_pixels(images: CodedImages, settings: DataSettings) -> list[Finding]:
    """Say what the images' values are and how a run maps them, and whether much of them is lost."""
    try:
        survey = surveyed(images, settings.pixels)
    except UserError as error:
        found, _, fix = str(error).rpartition(": ")
        return [Finding(VALUES, "error", found, fix)]
    line = survey.line() or "8 bits a channel"
    levels = round(256 * survey.spanned)
    if survey.clipped > CLIPPED * survey.measured or levels < LEVELS:
        found = f"{line}; the median image has at most {levels} of 256 levels"
        fix = "declare the range that shows them with data.range=LOW..HIGH, or leave out images with faulty values"
        return [Finding(VALUES, "warning", found, fix)]
    return [Finding(VALUES, "ok", line)]


def check_profiles(images: CodedImages) -> Finding:
    """Count the embedded colour profiles among a sample: which are converted to sRGB, and which cannot be used."""
    some = np.unique(np.linspace(0, len(images) - 1, min(SAMPLE, len(images))).astype(int)).tolist()

    def look(turn: int) -> bytes | None:
        try:
            return depth.profile(images.source(some[turn])).encode()
        except BrokenImageError:
            return None

    counts = Counter(found.decode() for found in digests_of("profile 1", files_of(images, some), look) if found)
    parts = [
        f"{plural(counts[kind], 'image')} {words}"
        for kind, words in (("converted", "converted to sRGB"), ("ignored", "with a profile that cannot be used"))
        if counts[kind]
    ]
    found = f"of {plural(len(some), 'image')}: {', '.join(parts)}" if parts else "all sRGB, or without a profile"
    if counts["ignored"]:
        fix = "save these images again in sRGB: their colours are taken as sRGB, whatever they were"
        return Finding("colour profiles", "warning", found, fix)
    return Finding("colour profiles", "ok", found)
