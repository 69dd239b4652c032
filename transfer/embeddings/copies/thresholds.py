"""The cosine from which images count as near-duplicates, chosen by altered copies of some and by their neighbours."""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from excb.console import Reporter, plural
from excb.errors import UserError, require
from excb.images.copies import comparable, look_alike, near_pairs
from excb.images.decoding import BrokenImageError
from excb.images.image_set import ImageSet
from excb.images.picture import as_channels, each_channel, visible_rgb
from excb.images.pixels import EIGHT_BIT, Pixels
from excb.inference.accuracy import share_interval
from excb.neighbours.nearest import nearest
from excb.networks.features import embed_images
from excb.seeding import Purpose, generator

from ...data.alterations import cropped, made_smaller, mirror_image, recoloured, recompressed
from ..table.vectors import Vectors, in_place
from .overlay import same_picture, small_picture

if TYPE_CHECKING:
    from excb.hub.backbone import Backbone

Network = Callable[[], "Backbone"]  # loads the network that made vectors, with the preprocessing that they had

COPIED, FEWEST = 100, 20  # images that are altered; the fewest that calibrate
COMPARED, NEAREST = 1000, 8  # images whose neighbours are looked at, and how many of each
ALARMS = 0.01  # share of images that have a different one at or above the threshold, at most
SEED = 0  # of the images and their changes
STEPS = 10_000  # a threshold is a multiple of 1 / STEPS
ASK = "name a cosine, such as near_duplicates(0.95) or --near-duplicates 0.95"

Alteration = Callable[[Image.Image, np.random.Generator], Image.Image]
ALTERATIONS: Mapping[str, Alteration] = {
    "JPEG": partial(recompressed, quality=(50, 80)),
    "crop": partial(cropped, sides=(0.9, 0.95)),  # 81 to 90 % of the area
    "resize": partial(made_smaller, sides=(0.4, 0.8)),
    "flip": lambda image, _random: mirror_image(image),
    "colour": partial(recoloured, strength=0.15),
}


@dataclass(frozen=True)
class CopyThreshold:
    """A threshold, and what it does on images that did not choose it.

    Attributes:
        cosine: from which images count as near-duplicates.
        found: share of altered copies, by kind of change, that reach it with their original, or look like it.
        alarms: share of images that reach it with a different one, or look like one.
        altered: images that were altered, each in every way.
        compared: images whose neighbours were looked at.
        pictures: whether images that look the same count too, whatever their cosine (`alike_pictures`).
    """

    cosine: float
    found: Mapping[str, float]
    alarms: float
    altered: int
    compared: int
    pictures: bool = False

    @property
    def found_percent(self) -> float:
        """Altered copies of all kinds that it finds."""
        return 100 * sum(self.found.values()) / len(self.found)

    @property
    def found_interval(self) -> tuple[float, float]:
        """The 95 % interval of `found_percent`: Wilson's, over images, as copies of one are alike."""
        return share_interval(self.found_percent / 100, self.altered)

    @property
    def alarms_interval(self) -> tuple[float, float]:
        """The 95 % interval in percent of `alarms`."""
        return share_interval(self.alarms, self.compared)

    def __str__(self) -> str:
        low, high = self.found_interval
        kinds = ", ".join(f"{name} {100 * share:.0f}" for name, share in self.found.items())
        how = " or pictures that look the same" if self.pictures else ""
        return (
            f"cosine from {self.cosine:.4g}{how}, calibrated on these images: finds {self.found_percent:.0f} % of "
            f"altered copies ({low:.0f} to {high:.0f}; {kinds}), and takes {100 * self.alarms:.1f} % of images "
            f"({self.alarms_interval[0]:.1f} to {self.alarms_interval[1]:.1f}) for copies of different ones"
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "cosine": self.cosine,
            "pictures": self.pictures,
            "found_percent": self.found_percent,
            "found_interval": list(self.found_interval),
            "found": dict(self.found),
            "alarms_percent": 100 * self.alarms,
            "alarms_interval": list(self.alarms_interval),
            "images_altered": self.altered,
            "images_compared": self.compared,
        }


def alike_pictures(embeddings: Vectors) -> list[tuple[int, int]] | None:
    """Pairs of rows whose small grey pictures are the same by `near_pairs`; None of too many images.

    It finds what was saved again, made smaller or recoloured, whatever the network, but no crops and mirror images.
    """
    images = ImageSet(Path(embeddings.root), list(embeddings.paths))
    return near_pairs(images) if comparable([images]) else None


def calibrate_copies(
    embeddings: Vectors,
    load: Network,
    reporter: Reporter,
    *,
    alike: Sequence[tuple[int, int]] | None = None,
) -> CopyThreshold:
    """Choose the threshold of embeddings whose files and network are there.

    It is the lowest cosine that at most `ALARMS` of images reach with a different image, but no lower than it takes to
    find all altered copies that do not look like their originals. An image that shows the same picture as another
    (`same_picture`) is not a different one, so that the copies among the images do not raise it. One half of the images
    that are drawn chooses, the other measures.

    Args:
        embeddings: of images in a folder.
        load: their network.
        reporter: shows progress.
        alike: what `alike_pictures` found, where that counts too.

    Raises:
        UserError: there are too few images, their files are gone, or the network cannot be loaded.
    """
    count = len(embeddings)
    require(count >= 2 * FEWEST, f"{plural(count, 'image is', 'images are')} too few to calibrate by: {ASK}")
    pictures = _Pictures(embeddings)
    drawn = generator(Purpose.SPLIT, SEED, count).permutation(count)
    copies, seen = _copy_cosines(embeddings, load, pictures, np.sort(drawn[:COPIED]), reporter)
    if alike is not None:
        copies = np.where(seen, 1.0, copies)
    compared = np.sort(drawn[:COMPARED])
    different = _Different(embeddings, pictures, compared, alike or ())
    choosing, measuring = np.arange(0, len(compared), 2), np.arange(1, len(compared), 2)
    half = copies[:, : copies.shape[1] // 2]
    limit = _above(different.highest(choosing, math.floor(ALARMS * len(choosing))))
    cosine = min(1.0, max(limit, _at_most(float(half.min()))))
    alarms = different.reaching(measuring, cosine)
    found = (copies[:, copies.shape[1] // 2 :] >= cosine - 1e-9).mean(1)
    shares = dict(zip(ALTERATIONS, found.tolist(), strict=True))
    altered = copies.shape[1] - half.shape[1]
    return CopyThreshold(cosine, shares, alarms / len(measuring), altered, len(measuring), alike is not None)


def _above(cosine: float) -> float:
    """The least multiple of 1 / STEPS above a cosine."""
    return math.floor(cosine * STEPS + 1) / STEPS


def _at_most(cosine: float) -> float:
    return math.floor(cosine * STEPS) / STEPS


class _Pictures:
    """The images of embeddings, opened again."""

    def __init__(self, embeddings: Vectors) -> None:
        prepared = embeddings.model.get("preprocessing") or {}
        self._root, self._paths = Path(embeddings.root), embeddings.paths
        self._pixels = Pixels.from_dict(prepared["pixels"]) if "pixels" in prepared else EIGHT_BIT
        self._small = dict[int, Image.Image]()

    def open(self, row: int) -> Image.Image | np.ndarray:
        """One image. Raises UserError if it is gone."""
        try:
            return as_channels(self._root / self._paths[row], self._pixels)
        except (UserError, BrokenImageError):
            raise UserError(
                f"calibration needs the images, and {self._root / self._paths[row]} cannot be read: {ASK}"
            ) from None

    def small(self, row: int) -> Image.Image:
        """One image as `same_picture` takes it."""
        if row not in self._small:
            self._small[row] = small_picture(self.open(row))
        return self._small[row]


def _altered(alter: Alteration, key: tuple[Purpose, int, int, int], plane: Image.Image) -> Image.Image:
    """A plane of an image, altered by draws that depend on the key alone: the same for all of its planes."""
    return alter(plane, generator(*key))


def _copy_cosines(
    embeddings: Vectors, load: Network, pictures: _Pictures, rows: np.ndarray, reporter: Reporter
) -> tuple[np.ndarray, np.ndarray]:
    """Cosines [kinds, n] of images with each of their altered copies, and whether each looks like its image.

    The images are at random places in the order.
    """
    rows = generator(Purpose.SPLIT, SEED, len(rows), 1).permutation(rows)
    try:
        network = load()
    except UserError as error:
        raise UserError(f"calibration needs the network that made the vectors ({error}): {ASK}") from None

    alike = list[bool]()

    def copies() -> Iterator[Image.Image | np.ndarray]:
        for row in rows.tolist():
            image = pictures.open(row)
            for kind, alter in enumerate(ALTERATIONS.values()):
                key = Purpose.TRANSFER_VIEW, SEED, kind, row
                copy = each_channel(image, partial(_altered, alter, key))
                alike.append(look_alike(visible_rgb(image), visible_rgb(copy)))
                yield copy

    with reporter.progress("altered copies", len(rows) * len(ALTERATIONS)) as bar:
        made = embed_images(network, network.transform, copies(), progress=bar.advance)
    originals = torch.stack([embeddings.rows.rows(row, row + 1)[0] for row in rows.tolist()])
    unit = _unit(made).view(len(rows), len(ALTERATIONS), -1)
    cosines: np.ndarray = (unit * _unit(originals)[:, None]).sum(2).T.numpy()
    return cosines, np.array(alike).reshape(len(rows), -1).T


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows.double(), dim=-1)


class _Different:
    """For each of some images, the cosine with the nearest that does not show the same picture, found when needed."""

    def __init__(
        self,
        embeddings: Vectors,
        pictures: _Pictures,
        compared: np.ndarray,
        alike: Sequence[tuple[int, int]],
    ) -> None:
        others = defaultdict[int, list[int]](list)
        for first, second in alike:
            others[first].append(second)
            others[second].append(first)
        self._alike = others
        queries = torch.cat([embeddings.rows.rows(row, row + 1) for row in compared.tolist()])
        self._pictures, self._compared = pictures, compared
        around = nearest(in_place(embeddings.rows), queries, min(NEAREST + 1, len(embeddings)))
        self._near = [
            [(cosine, other) for cosine, other in zip(cosines, others, strict=True) if other != row]
            for row, cosines, others in zip(
                compared.tolist(), around.similarities.tolist(), around.indices.tolist(), strict=True
            )
        ]

    def highest(self, places: np.ndarray, skipped: int) -> float:
        """The highest cosine among some of the compared images, after so many higher ones; -1 if there are fewer."""
        found = enumerate(self._descending(places))
        return next((cosine for number, (cosine, _) in found if number == skipped), -1.0)

    def reaching(self, places: np.ndarray, cosine: float) -> int:
        """How many of some of the compared images look like a different one, or have one with at least this cosine."""
        found = {place for place in places.tolist() if self._looks_like_another(int(self._compared[place]))}
        for each, place in self._descending(places):
            if each < cosine:
                break
            found.add(place)
        return len(found)

    def _looks_like_another(self, row: int) -> bool:
        """Whether a different image looks the same as this one."""
        return any(
            not same_picture(self._pictures.small(row), self._pictures.small(other)) for other in self._alike[row]
        )

    def _descending(self, places: np.ndarray) -> Iterator[tuple[float, int]]:
        """The cosines from the highest on, and whose. Pictures are compared only as far as they are taken."""
        heap = [(-self._near[place][0][0], place, 0) for place in places.tolist() if self._near[place]]
        heapq.heapify(heap)
        while heap:
            negative, place, turn = heapq.heappop(heap)
            own, other = int(self._compared[place]), self._near[place][turn][1]
            if not same_picture(self._pictures.small(own), self._pictures.small(other)):
                yield -negative, place
            elif turn + 1 < len(self._near[place]):
                heapq.heappush(heap, (-self._near[place][turn + 1][0], place, turn + 1))
