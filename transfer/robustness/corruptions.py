"""Corrupted images: what a network sees of an image, damaged by the corruptions of Hendrycks and Dietterich (2019)."""

import hashlib
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from excb.errors import UserError
from excb.images.image_set import Images
from excb.networks.preprocessing import Preprocessing
from excb.seeding import Purpose, fold

PACKAGE = "imagecorruptions-imaug"  # the kept fork of `imagecorruptions`, whose module has that name
SMALLEST = 32  # side of an image in pixels that it takes
_OWN_GENERATOR = ("glass_blur", "impulse_noise")  # these take a seed, because they do not use NumPy's global generator


@cache
def library() -> Any:
    """The module that corrupts.

    Raises:
        UserError: it is not installed, or it is the package that the fork replaced.
    """
    try:
        version()
        return importlib.import_module("imagecorruptions")
    except ImportError:
        raise UserError(
            f"corruptions need {PACKAGE}: run `pip install 'excb[robustness]'`, or name --corruptions none"
        ) from None


def version() -> str:
    """The package and its version. Raises ImportError if it is not installed."""
    return f"{PACKAGE} {metadata.version(PACKAGE)}"


def corrupt(image: Image.Image, name: str, severity: int, key: int) -> Image.Image:
    """One corrupted image.

    Args:
        image: RGB, at least 32 pixels on both sides. Severities are in its pixels: the authors' images have 224.
        name: of the corruption.
        severity: 1 to 5.
        key: RNG key; equal keys give equal images.
    """
    seed = fold(Purpose.CORRUPTION, key) & 0xFFFFFFFF
    own: dict[str, int] = {"seed": seed & 0x7FFFFFFF} if name in _OWN_GENERATOR else {}
    with _global_seed(seed):
        pixels = library().corrupt(np.asarray(image), corruption_name=name, severity=severity, **own)
    return Image.fromarray(pixels)


@contextmanager
def _global_seed(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator, which the library draws from, and put its state back afterwards."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


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
    """

    clean: Images
    preprocessing: Preprocessing
    corruption: str
    severities: Sequence[int]
    seed: int
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
        settings = [self.corruption, list(self.severities), self.seed, self.preprocessing.to_dict(), version()]
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
        return corrupt(self._last[image], self.corruption, severity, key)
