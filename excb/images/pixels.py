"""How stored values become 8-bit channels: one record for a whole set of images, never one image's own."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, Self

import numpy as np

from excb.console import plural
from excb.errors import UserError

Source = Path | str | IO[bytes]  # an image as it is stored: a file, or a stream of its bytes
PART = 2**20  # values mapped at once: a whole image in float64 may take gigabytes
TOP = 255.0  # of a channel

Colours = Literal["srgb", "stored"]
Orientation = Literal["exif"]
Background = Literal["dropped"]
_ADDED = ("colours", "orientation", "background")  # fields that older files have not: left out at their usual value
Notice = Callable[[], None]  # called where an image holds values outside its set's range


class BrokenImageError(Exception):
    """A file that is not a readable image. The message says why."""


class PixelsError(BrokenImageError):
    """An intact image with other channels or more bits than its set declares. The message gives the choices."""


@dataclass(frozen=True)
class Pixels:
    """How stored values become channels of 0..255, upright and in one colour space.

    Values of more than 8 bits are mapped linearly, low..high, clipped and rounded; those of 8 bits are channels as they
    are. Whatever follows (crops, augmentation, networks) sees 8-bit channels. Values that are not numbers become 0.
    """

    channels: int = 3  # three: red, green and blue, and grey images have three equal ones
    low: tuple[float, ...] = (0.0,)  # the stored values that become 0: one for all channels, or one each
    high: tuple[float, ...] = (TOP,)  # the stored values that become 255, likewise
    origin: Literal["8-bit", "declared", "measured"] = "8-bit"  # whoever set the range; 8-bit images have theirs
    # Of 8-bit colours and greys: "srgb" converts them by an embedded profile; "stored" ignores it, as version 0.2 did
    # and torchvision and timm do.
    colours: Colours = "srgb"
    orientation: Orientation = "exif"  # images are turned upright as their EXIF says
    background: Background = "dropped"  # transparency is dropped: the colours beneath it stay as they are

    def __post_init__(self) -> None:
        fits = len(self.low) == len(self.high) and len(self.low) in (1, self.channels)
        ordered = all(-np.inf < low < high < np.inf for low, high in zip(self.low, self.high, strict=False))
        if self.channels < 1 or not fits or not ordered:
            raise UserError(
                f"{plural(self.channels, 'channel')} from {self.range} are no pixels: write LOW..HIGH with LOW below "
                "HIGH, such as 0..4095, once or once for each channel"
            )

    @property
    def deep(self) -> bool:
        """Whether images of more than 8 bits are mapped; else they are refused."""
        return self.origin != "8-bit"

    @property
    def plain(self) -> bool:
        """Whether images are ordinary ones: colours and greys of 8 bits, which nothing maps."""
        return self.channels == len("RGB") and not self.deep

    @property
    def in_words(self) -> str:
        """The treatment of stored values, for people."""
        parts = [f"values mapped from {self.range}"] if self.deep else []
        if self.channels == len("RGB"):
            parts.append("colours in sRGB by their profiles" if self.colours == "srgb" else "colours as stored")
        return ", ".join([*parts, "upright by EXIF", "transparency dropped"])

    @property
    def range(self) -> str:
        """LOW..HIGH, as it is typed; of different ranges one for each channel, with commas between."""
        each = [f"{low:.12g}..{high:.12g}" for low, high in zip(self.low, self.high, strict=False)]
        return each[0] if len(set(each)) == 1 else ",".join(each)

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Map stored values of any type, [H, W] or [H, W, C], to uint8 of the same shape."""
        if values.dtype in (np.uint8, np.bool_):
            return values if values.dtype == np.uint8 else values * np.uint8(TOP)
        low, high = np.array(self.low), np.array(self.high)
        mapped = np.empty(values.shape, np.uint8)
        step = max(1, PART * len(values) // values.size)
        for start in range(0, len(values), step):
            part = values[start : start + step].astype(np.float64)
            part[np.isnan(part)] = -np.inf
            mapped[start : start + step] = ((part.clip(low, high) - low) * (TOP / (high - low))).round()
        return mapped

    def clips(self, values: np.ndarray) -> bool:
        """Whether any number among stored values, [H, W] or [H, W, C], lies outside the range; not those of 8 bits."""
        if values.dtype in (np.uint8, np.bool_):
            return False
        rows = values.reshape(-1, values.shape[-1] if values.ndim > 2 else 1)
        low, high = np.array(self.low), np.array(self.high)
        if values.dtype.kind != "f":
            return bool((rows.min(axis=0) < low).any() or (rows.max(axis=0) > high).any())
        return bool((((rows < low) | (rows > high)) & np.isfinite(rows)).any())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what older files have not is left out while it has its usual value."""
        usual = {name for name in _ADDED if getattr(self, name) == type(self).__dataclass_fields__[name].default}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if name not in usual
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        fields: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
        return cls(**fields)

    @classmethod
    def declared(cls, text: str, channels: int = 3) -> Self:
        """The record of a range as a user types it, LOW..HIGH, or several with commas between, one for each channel.

        Raises:
            UserError: it is something else.
        """
        try:
            bounds = [[float(bound) for bound in part.split("..")] for part in text.replace(" ", "").split(",")]
            low, high = zip(*bounds, strict=True)
        except ValueError:
            raise UserError(
                f"a range of pixel values is LOW..HIGH, such as 0..4095 or -1024..3071, not {text!r}"
            ) from None
        return cls(channels, low, high, "declared")


EIGHT_BIT = Pixels()


def pixels_of(images: object) -> Pixels:
    """The record of pixels of a set of images; sets that have none hold 8-bit images."""
    pixels: Pixels = getattr(images, "pixels", EIGHT_BIT)
    return pixels


class ClippedImages:
    """A mark for each image of a set that was read and holds values outside the range, whatever process read it.

    Worker processes share the marks' memory with the process that started them; ranks do not.

    Args:
        count: images in the set.
    """

    def __init__(self, count: int) -> None:
        import torch

        self._marks = torch.zeros(count, dtype=torch.uint8).share_memory_()

    def __len__(self) -> int:
        """Number of images."""
        return len(self._marks)

    def at(self, index: int) -> Notice:
        """Marks an image when it is called."""
        return partial(self.add, [index])

    def add(self, indices: Iterable[int]) -> None:
        """Mark images."""
        for index in indices:
            self._marks[index] = 1

    def part(self, indices: Sequence[int]) -> "ClippedPart":
        """The marks of some of the images."""
        return ClippedPart(self, tuple(indices))

    @property
    def indices(self) -> list[int]:
        """The images that are marked, in their order."""
        marked: list[int] = self._marks.nonzero()[:, 0].tolist()
        return marked


@dataclass(frozen=True)
class ClippedPart:
    """The marks of some images of a set, by their indices in it."""

    marks: ClippedImages
    indices: tuple[int, ...]

    def at(self, index: int) -> Notice:
        """Marks an image of the part when it is called."""
        return self.marks.at(self.indices[index])

    def part(self, indices: Sequence[int]) -> "ClippedPart":
        """The marks of some of these images."""
        return ClippedPart(self.marks, tuple(self.indices[index] for index in indices))


def notice_of(images: object, index: int) -> Notice | None:
    """A function to call if an image of a set holds values outside the range; None of sets that do not count these."""
    clipped: ClippedImages | ClippedPart | None = getattr(images, "clipped", None)
    return None if clipped is None else clipped.at(index)
