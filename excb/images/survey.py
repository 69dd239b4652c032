"""One look at a whole set: modes, channels, depth and range of its images, and the one mapping that follows."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from excb.console import plural
from excb.errors import UserError, require
from excb.images import depth
from excb.images.decoding import BrokenImageError
from excb.images.digests import digests_of, files_of
from excb.images.formats.plugins import HEIC, JXL, RAW
from excb.images.image_set import read_once
from excb.images.pixels import EIGHT_BIT, ClippedImages, Pixels, Source, pixels_of
from excb.images.subset import Subset

# What decodes to 8 bits a channel whatever such a file holds, so that no header need be read.
SHALLOW = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".avif"),
    *(*HEIC.extensions, *JXL.extensions, *RAW.extensions),
)
HEADERS, MEASURED = 4096, 2000  # images whose headers are read, and whose values are measured, at most: evenly spaced
READERS = 8  # threads: reading waits for the disk
GREY_OR_COLOUR = (1, 3)  # channels
UNIT, FAR = 1.0, 100.0  # floats up to 1 in some images, and from 100 on in others, are of two kinds
DECLARE = "data.range=LOW..HIGH (--range LOW..HIGH in commands without a recipe)"
_CHOICES = f"separate them, or declare the range of those of more bits with {DECLARE}"

Note = Callable[[str], None]
StoredKind = tuple[str, int]  # the type of stored values, and the number of channels


@dataclass(frozen=True)
class Survey:
    """Facts about the pixels of a set."""

    images: int
    kinds: Counter[StoredKind]  # of the images that were looked at
    pixels: Pixels  # the mapping for all of them
    low: float = 0.0  # least and greatest stored values of the images that were measured
    high: float = 255.0
    measured: int = 0  # how many these are
    clipped: int = 0  # of these, how many hold values outside the mapping's range
    spanned: float = 1.0  # the share of the range between the least and the greatest value of a median image

    @property
    def deep(self) -> bool:
        """Whether images of more than 8 bits were seen."""
        return any(stored != "uint8" for stored, _ in self.kinds)

    def line(self, whose: str = "") -> str:
        """All that in one line, for people; empty for 8-bit grey and colour. `whose` the range is, if not declared."""
        several = self.pixels.channels != 3
        if not self.deep and not several:
            return ""
        types = " and ".join(sorted({depth.type_name(np.dtype(stored)) for stored, _ in self.kinds}))
        names = {1: "grey", 3: "colour"}
        counts = {count for _, count in self.kinds}
        words = (
            f"{plural(self.pixels.channels, 'channel')}" if several else " and ".join(names[n] for n in sorted(counts))
        )
        said = f"{plural(self.images, 'image')}: {types} {words}"
        if not self.deep:
            return said
        sampled = f" of {self.measured:,} of them" if self.measured < self.images else ""
        whose = whose or ("the declared " if self.pixels.origin == "declared" else "")
        how = f"mapped from {whose}{self.pixels.range}"
        clipped = f"; {self.clipped:,} with values outside, which are clipped" if self.clipped else ""
        return f"{said}, values {self.low:,.6g} to {self.high:,.6g}{sampled}: {how}{clipped}"


def surveyed(images: Any, declared: Pixels | None = None, *, colours_of: str = "") -> Survey:
    """Look at a set's images, and settle how their stored values become channels.

    Sets without a file that may hold more than 8 bits cost nothing. Of others, `HEADERS` headers are read, and where
    these state more than 8 bits, the values of `MEASURED` images.

    Args:
        images: with `source(index)`, else they are taken for 8-bit images.
        declared: the record that a user or a network says; its range holds for images of more than 8 bits.
        colours_of: the protocol or command that takes grey and colour images only, if one does.

    Raises:
        UserError: images have several numbers of channels, or values on several scales, and no record says which.
    """
    known, total, name = declared or pixels_of(images), len(images), _name_of(images)
    source: Callable[[int], Source] = getattr(images, "source", _no_source)
    kinds, possible, examples = _stored(images, known)
    if not kinds and known.channels != 3:  # none can be read as images of so many channels
        _refuse_other_channels(_stored(images, replace(known, channels=3, low=(0.0,), high=(1.0,)))[0], known, name)
    if not kinds:
        return Survey(total, kinds, known)
    if colours_of:
        others = Counter(count for _, count in kinds.elements() if count not in GREY_OR_COLOUR)
        require(
            not others,
            f"{colours_of} takes grey and colour images, and "
            + " and ".join(
                f"{number:,} of {name} have {plural(count, 'channel')}{_such_as(examples, _channels_of, count)}"
                for count, number in others.most_common()
            )
            + ": leave them out, or choose a command that takes other channels (docs/channels.md)",
        )
    channels = _channels(kinds, known, name, examples)
    if declared is not None and channels != known.channels:  # a range is declared, and no number of channels
        known = replace(known, channels=channels)
    deep = {stored for stored, _ in kinds if stored != "uint8"}
    if not deep:
        return Survey(total, kinds, known if channels == known.channels else Pixels(channels, colours=known.colours))
    require(known.origin == "declared" or len({stored for stored, _ in kinds}) == 1, _mixed(kinds, name, examples))
    looked = evenly(possible, MEASURED)
    measured = _looked(images, looked, f"bounds of {channels}", lambda index: _bounds(source(index), channels))
    ranges = [np.frombuffer(bounds).reshape(2, -1) for bounds in measured if bounds]
    require(bool(ranges), f"no image of {name} holds a number: repair them, or leave them out")
    lows, highs = (np.array(part, np.float64) for part in zip(*ranges, strict=True))
    if known.deep:
        pixels = known
    else:
        if next(iter(deep)).startswith("float"):
            names = [images.paths[index] for index, bounds in zip(looked, measured, strict=True) if bounds]
            _refuse_two_scales(np.nanmax(highs, axis=1), names, name)
        pixels = replace(_measured(lows, highs, channels, name), colours=known.colours)
    outside = ((lows < np.array(pixels.low)) | (highs > np.array(pixels.high))).any(axis=1)
    return Survey(
        total,
        kinds,
        pixels,
        float(np.nanmin(lows)),
        float(np.nanmax(highs)),
        len(ranges),
        int(outside.sum()),
        _spanned(lows, highs, pixels),
    )


def common_channels(images: Any) -> int:
    """How many channels the images of a set have, by headers alone.

    Raises:
        UserError: they have several numbers of channels.
    """
    known = pixels_of(images)
    kinds, _, examples = _stored(images, known)
    return _channels(kinds, known, _name_of(images), examples) if kinds else known.channels


def _stored(images: Any, known: Pixels) -> tuple[Counter[StoredKind], list[int], dict[StoredKind, str]]:
    """How many images are of each kind, which may hold more than 8 bits, and one of each kind by its path."""
    source: Callable[[int], Source] = getattr(images, "source", _no_source)
    coded = source is not _no_source
    possible = _possibly_deep(images.paths) if coded else []
    headers = "header of a picture" if known.channels == 3 else f"header of {plural(known.channels, 'channel')}"
    if coded and len(possible) <= HEADERS:  # of all of them, and whoever asks for headers reads pixels next
        source = partial(read_once, images)
    looked = evenly(possible, HEADERS)
    seen = _looked(images, looked, headers, lambda index: _kind(source(index), known))
    kinds, examples = Counter[StoredKind](), dict[StoredKind, str]()
    for index, kind in zip(looked, seen, strict=True):
        if kind is not None:
            kinds[_kind_of(kind)] += 1
            examples.setdefault(_kind_of(kind), images.paths[index])
    if coded and len(possible) < len(images):
        kinds["uint8", 3] += len(images) - len(possible)
        shallow = next(path for path in images.paths if path.lower().endswith(SHALLOW))
        examples.setdefault(("uint8", 3), shallow)
    return kinds, possible, examples


def _such_as(examples: Mapping[StoredKind, str], fact: Callable[[StoredKind], object], value: object) -> str:
    """An image of whose kind a fact has some value, in brackets: who has to separate the images must find them."""
    return f" (such as {next(path for kind, path in examples.items() if fact(kind) == value)})"


def _channels_of(kind: StoredKind) -> int:
    """The channels that such images are opened with: three where they are grey."""
    return 3 if kind[1] == 1 else kind[1]


def _type_of(kind: StoredKind) -> str:
    return depth.type_name(np.dtype(kind[0]))


def _name_of(images: Any) -> str:
    return str(getattr(images, "root", "the set"))


def _spanned(lows: np.ndarray, highs: np.ndarray, pixels: Pixels) -> float:
    """The share of the range that a median image spans, in its widest channel."""
    low, high = np.array(pixels.low), np.array(pixels.high)
    shares = (highs.clip(low, high) - lows.clip(low, high)) / (high - low)
    return float(np.median(np.nanmax(shares, axis=1)))


def has_profiles(images: Any) -> bool:
    """Whether the colour profile of any image changes its colours; all headers are read until one does."""
    source = getattr(images, "source", _no_source)
    if isinstance(images, Subset):
        return has_profiles(images.images)
    if source is _no_source:
        return False
    starts = range(0, len(images), HEADERS)
    return any(
        "converted" in _map(lambda index: depth.profile(source(index)), range(start, min(start + HEADERS, len(images))))
        for start in starts
    )


def _no_source(_index: int) -> Source:
    raise NotImplementedError  # sets in memory


def with_pixels(images: Any, pixels: Pixels) -> Any:
    """A set that opens its images by a record of pixels; itself where it has that record already.

    Where that has a range, the set marks images with values outside as they are read (`ClippedImages`).
    """
    if pixels_of(images) == pixels:
        return images
    names = {field.name for field in fields(images)}
    if "pixels" not in names:  # a part of a set, or one of 8-bit colours
        return replace(images, images=with_pixels(images.images, pixels)) if "images" in names else images
    marks = {"clipped": ClippedImages(len(images))} if pixels.deep and "clipped" in names else {}
    return replace(images, pixels=pixels, **marks)


def on_mapping(images: Any, pixels: Pixels, *, note: Note, ranges_of: str = "", refusal: str) -> Any:
    """Further images on the mapping of a set that is open already.

    Args:
        images: as of `surveyed`.
        pixels: the record of the set.
        note: called with what the images are, where that is to be said.
        ranges_of: whose range it is, as `Survey.line` has it.
        refusal: how the message ends where these images alone have more than 8 bits.

    Raises:
        UserError: no one mapping fits, or these images alone have more than 8 bits.
    """
    survey = surveyed(images, None if pixels == EIGHT_BIT else pixels)
    require(not survey.deep or pixels.deep, f"{getattr(images, 'root', '')} has images of more than 8 bits{refusal}")
    if line := survey.line(ranges_of):
        note(line)
    return with_pixels(images, pixels)


def _possibly_deep(paths: Iterable[str]) -> list[int]:
    return [index for index, path in enumerate(paths) if not path.lower().endswith(SHALLOW)]


def evenly(indices: Sequence[int], count: int) -> list[int]:
    """`count` of them at most, evenly spaced, so that all classes are covered."""
    if len(indices) <= count:
        return list(indices)
    return [indices[int(place)] for place in np.linspace(0, len(indices) - 1, count)]


def _map(look: Callable[[int], Any], indices: Sequence[int]) -> Iterable[Any]:
    if len(indices) < READERS:
        return list(map(look, indices))
    with ThreadPoolExecutor(READERS) as threads, warnings.catch_warnings(action="ignore"):
        return list(threads.map(look, indices))


def _looked(images: Any, indices: Sequence[int], kind: str, look: Callable[[int], bytes | None]) -> list[bytes | None]:
    """The answers of `look` on some images; files that have not changed since are not read again."""
    return digests_of(f"{kind} 1", files_of(images, indices), lambda turn: look(indices[turn]), each=_map)


def _kind(source: Source, known: Pixels) -> bytes | None:
    """The type of an image's stored values and its channels, as `_kind_of` reads them; None for a broken file."""
    try:
        stored, channels = depth.described(source, None if known.channels == 3 else known.channels)
    except BrokenImageError:
        return None
    return f"{'uint8' if stored == np.bool_ else stored.newbyteorder('=')} {channels}".encode()


def _kind_of(kind: bytes) -> StoredKind:
    stored, channels = kind.decode().split()
    return stored, int(channels)


def _channels(kinds: Counter[StoredKind], known: Pixels, name: str, examples: Mapping[StoredKind, str]) -> int:
    """The channels of all images: three of grey and colour."""
    counts = Counter[int]()
    for kind, images in kinds.items():
        counts[_channels_of(kind)] += images
    if known.channels != 3:
        if (3 if known.channels == 1 else known.channels) not in counts:
            _refuse_other_channels(kinds, known, name)
        return known.channels
    require(
        len(counts) == 1,
        f"the images of {name} differ in their channels: "
        + " and ".join(
            f"{images:,} {'has' if images == 1 else 'have'} {count}" + _such_as(examples, _channels_of, count)
            for count, images in counts.most_common()
        )
        + ": separate them, or declare the channels with data.channels=N (excb-eval: --channels N)",
    )
    return next(iter(counts))


def _refuse_other_channels(kinds: Counter[StoredKind], known: Pixels, name: str) -> None:
    """Raise UserError for images that all have other channels than were declared, or than a network was trained on."""
    counts = " or ".join(plural(count, "channel") for count in sorted({count for _, count in kinds}))
    require(
        not kinds,
        f"the images of {name} have {counts}, not {known.channels}: choose a network of their channels, or "
        "declare those that they have with data.channels=N (excb-eval: --channels N)",
    )


def _mixed(kinds: Counter[StoredKind], name: str, examples: Mapping[StoredKind, str]) -> str:
    types = Counter[str]()
    for kind, images in kinds.items():
        types[_type_of(kind)] += images
    parts = " and ".join(
        f"{images:,} {'is' if images == 1 else 'are'} {stored}" + _such_as(examples, _type_of, stored)
        for stored, images in types.most_common()
    )
    return f"the images of {name} differ in depth, so that no one range fits: {parts}: {_CHOICES}"


def _bounds(source: Source, channels: int) -> bytes | None:
    """The least and the greatest number of each channel, float64 [2, C]; of three channels those of all, [2, 1].

    Nothing of an image that is not deep or holds no number, and None of a broken one.
    """
    try:
        values = depth.read_values(source, channels)
    except BrokenImageError:
        return None
    if values.dtype in (np.uint8, np.bool_):
        return b""
    rows = values.reshape(-1, channels) if channels != 3 else values.reshape(-1, 1)
    if values.dtype.kind == "f":
        rows = np.where(np.isfinite(rows), rows, np.nan)
        if np.isnan(rows).all():
            return b""
        with warnings.catch_warnings(action="ignore"):  # a channel without a number
            return np.array([np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)], np.float64).tobytes()
    return np.array([rows.min(axis=0), rows.max(axis=0)], np.float64).tobytes()


def _refuse_two_scales(highs: np.ndarray, names: Sequence[str], name: str) -> None:
    """Refuse floating-point images of which some end at 1 and others far above."""
    unit, far = np.flatnonzero((highs > 0) & (highs <= UNIT)), np.flatnonzero(highs >= FAR)
    if len(unit) and len(far):
        raise UserError(
            f"the images of {name} are on two scales: {plural(len(unit), 'has', 'have')} values up to 1 (such as "
            f"{names[unit[0]]}), and {len(far):,} up to {highs.max():,.6g} (such as {names[far[0]]}): {_CHOICES}"
        )


def _measured(lows: np.ndarray, highs: np.ndarray, channels: int, name: str) -> Pixels:
    """The range of all images that were measured: one of grey and colour, else one for each channel."""
    low, high = np.nanmin(lows, axis=0), np.nanmax(highs, axis=0)
    require(
        bool((low < high).all()),
        f"all images of {name} hold one value, {low[int(np.argmin(high - low))]:,.6g}, in a channel: declare the range "
        f"with {DECLARE}, or leave them out",
    )
    return Pixels(channels, tuple(low.tolist()), tuple(high.tolist()), "measured")
