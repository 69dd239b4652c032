"""Corrupted images: what a network sees of an image, damaged by the corruptions of Hendrycks and Dietterich (2019)."""

import hashlib
import importlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from excb.errors import UserError
from excb.images.image_set import Images
from excb.networks.preprocessing import Preprocessing
from excb.seeding import Purpose, fold

from .imagenet_c import frost, table

SMALLEST = 32  # side of an image in pixels that is corrupted
VERSION = "ImageNet-C's, written anew, version 1"  # a setting of results: another version gives other images


def require_libraries(names: Iterable[str]) -> None:
    """Raise UserError unless all that these corruptions need is installed."""
    names = set(names)
    if lacking := [name for name in table.OPENCV if name in names]:
        try:
            importlib.import_module("cv2")
        except ImportError:
            raise UserError(
                f"without OpenCV there is no {', '.join(lacking)}: run `pip install 'excb[robustness]'`, or name other "
                "--corruptions"
            ) from None
    if "frost" in names:
        frost.photographs()


def corrupt(image: Image.Image, name: str, severity: int, key: int, *, stored: bool) -> Image.Image:
    """One corrupted image.

    Args:
        image: RGB square of at least 32 pixels. Severities are in its pixels: ImageNet-C's images have 224.
        name: of the corruption.
        severity: 1 to 5.
        key: RNG key; equal keys give equal images.
        stored: as a JPEG of quality 85 holds it.
    """
    seed = fold(Purpose.CORRUPTION, key) & 0xFFFFFFFF
    return Image.fromarray(table.corrupted(np.asarray(image), name, severity, seed, stored=stored))


def seconds_of(name: str, severities: Sequence[int], side: int, *, stored: bool) -> float:
    """Seconds that a core takes to corrupt an image of `side` pixels, the mean over the severities; measured here."""
    image = Image.effect_noise((side, side), 64.0).convert("RGB")
    corrupt(image, name, severities[0], 0, stored=stored)  # loads libraries, and frost's photographs
    start = time.perf_counter()
    for severity in severities:
        corrupt(image, name, severity, 0, stored=stored)
    return (time.perf_counter() - start) / len(severities)


@dataclass(frozen=True)
class CorruptedImages:
    """Every image of a set at every severity of one corruption: those of one image follow each other.

    The square that the network sees is cut out first, as ImageNet-C's images were, so that a severity means the same
    whatever the size of the files. Random numbers depend on seed, corruption, severity and the image's path alone.

    Args:
        clean: the set.
        preprocessing: of the network, for clean images.
        corruption: its name.
        severities: 1 to 5 each.
        seed: names the random numbers.
        stored: whether images are as the JPEGs of ImageNet-C hold them.
    """

    clean: Images
    preprocessing: Preprocessing
    corruption: str
    severities: Sequence[int]
    seed: int
    stored: bool = True
    _last: dict[int, Image.Image] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.clean) * len(self.severities)

    @property
    def root(self) -> Path | str:
        """Of the clean images."""
        return self.clean.root

    @cached_property
    def paths(self) -> Sequence[str]:
        """The path of the clean image, with corruption and severity."""
        return [f"{path}#{self.corruption}-{severity}" for path in self.clean.paths for severity in self.severities]

    @property
    def labels(self) -> np.ndarray | None:
        """Class index of every image, int64 [N]."""
        return None if self.clean.labels is None else self.clean.labels.repeat(len(self.severities))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names."""
        return self.clean.classes

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the clean set's fingerprint and all that the corrupted images depend on beside it."""
        drawn = [self.corruption, list(self.severities), self.seed]
        settings = [*drawn, self.preprocessing.to_dict(), VERSION, self.stored]
        return hashlib.sha256(f"{self.clean.fingerprint} {settings}".encode()).hexdigest()

    def stamp(self, index: int) -> str:
        """See `Images.stamp`; once for every clean image."""
        image, turn = divmod(index, len(self.severities))
        return "" if turn else self.clean.stamp(image)

    def open(self, index: int) -> Image.Image:
        """See `Images.open`: a square, which the network takes as it is."""
        image, turn = divmod(index, len(self.severities))
        if image not in self._last:
            self._last.clear()
            cut = self.preprocessing.cut(self.clean.open(image))
            assert isinstance(cut, Image.Image)  # colours alone come here
            self._last[image] = cut
        severity = self.severities[turn]
        name = hashlib.sha256(self.clean.paths[image].encode("utf-8", "surrogateescape")).digest()[:8]
        corruption = int.from_bytes(hashlib.sha256(self.corruption.encode()).digest()[:8], "little")
        key = fold(self.seed, corruption, severity, int.from_bytes(name, "little"))
        return corrupt(self._last[image], self.corruption, severity, key, stored=self.stored)
