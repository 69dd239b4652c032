"""The jackknife: the spread of figures that are no mean over images, such as mAP over classes or mean IoU.

The sampling unit is the image, or a group of images where there are many. Such a figure depends on how many images
there are: mAP falls and mIoU rises with more of them. The interval is about test sets of this size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from excb.inference.estimate import LEAST, Estimate
from excb.seeding import Purpose, generator

MOST_GROUPS = 200
MOST_PAIRS = 200  # of groups
_PAIRED_IMAGES = 100_000  # images of all pairs: of many images pairs matter less, and cost more
_AT_ONCE = 2**22  # most weights at once: 32 MiB


def jackknife(value: float, without: np.ndarray) -> Estimate:
    """A figure's spread (Tukey, 1958).

    Args:
        value: the figure, or a difference of two.
        without: it without each of G groups of images, [G]; NaN where there is none.

    Returns:
        An error of NaN with fewer than `LEAST` groups.
    """
    known = without[~np.isnan(without)]
    if len(known) < LEAST:
        return Estimate(value, float("nan"), 1)
    return Estimate(value, float(np.sqrt(_variance(known))), len(known) - 1)


@dataclass(frozen=True)
class Replicates:
    """A figure of all images, without each group of them, and without pairs of groups.

    Attributes:
        value: the figure, or a difference of two.
        without: it without each of G groups, [G]; NaN where there is none.
        pairs: it without both groups of each of `group_pairs`, [P], likewise.
        images: how many.
    """

    value: float
    without: np.ndarray
    pairs: np.ndarray
    images: int

    @classmethod
    def of(cls, figure: Callable[[np.ndarray], np.ndarray], images: int) -> "Replicates":
        """The replicates of a figure: weights [R, images] of 0 and 1 -> [R]."""
        parts = [left_out(images), pairs_left_out(images)]
        without, pairs = (np.concatenate([figure(weights) for weights in part]) for part in parts)
        return cls(float(figure(np.ones((1, images), np.int64))[0]), without, pairs, images)

    def lead_over(self, other: "Replicates") -> "Replicates":
        """This figure minus the other, on the same images."""
        return Replicates(
            self.value - other.value, self.without - other.without, self.pairs - other.pairs, self.images
        )

    def spread(self) -> Estimate:
        """The spread by the jackknife, less half of what images do to the figure in pairs.

        The jackknife counts what two images do together twice, three three times, and so on (Efron and Stein, Annals of
        Statistics, 1981). What second differences find is there once for two images, three times for three, and six
        times for four. So without the half of it these count 1.5, 1.5 and once. Without all of it, mAP's variance is a
        tenth too small, since more than two images act together.
        """
        plain = jackknife(self.value, self.without)
        if np.isnan(plain.error):
            return plain
        groups = len(self.without)
        first, second = group_pairs(self.images).T
        # Efron and Stein's second differences. Effects of single groups cancel, whatever the number of images.
        together = groups * self.value - (groups - 1) * (self.without[first] + self.without[second])
        together += (groups - 2) * self.pairs
        variance = plain.error**2
        excess = float(np.nanvar(together)) / 2
        return Estimate(self.value, float(np.sqrt(max(variance - excess / 2, variance / 2))), plain.freedom)


def left_out(images: int) -> Iterator[np.ndarray]:
    """Which images remain without each group, in blocks [groups, images] int64 of 0 and 1.

    Images are divided into at most `MOST_GROUPS` groups at random, equally for all figures of equally many images.
    """
    groups = np.arange(min(images, MOST_GROUPS))
    return _without(images, np.stack([groups, groups], 1))


def pairs_left_out(images: int) -> Iterator[np.ndarray]:
    """Which images remain without each of `group_pairs`, likewise."""
    return _without(images, group_pairs(images))


def group_pairs(images: int) -> np.ndarray:
    """Random pairs of unlike groups of so many images, [P, 2]; the same for all figures of equally many images."""
    groups, number = min(images, MOST_GROUPS), min(MOST_PAIRS, max(LEAST, _PAIRED_IMAGES // images))
    random = generator(Purpose.BOOTSTRAP, images, 8)
    first, steps = random.integers(groups, size=number), random.integers(1, max(2, groups), size=number)
    return np.stack([first, (first + steps) % groups], 1)


def _without(images: int, groups: np.ndarray) -> Iterator[np.ndarray]:
    """Which images are in neither of two groups, for every row of `groups` [R, 2], in blocks."""
    group = generator(Purpose.BOOTSTRAP, images, 3).permutation(np.arange(images) % min(images, MOST_GROUPS))
    step = max(1, _AT_ONCE // images)
    for start in range(0, len(groups), step):
        first, second = groups[start : start + step].T[:, :, None]
        yield ((group != first) & (group != second)).astype(np.int64)


def _variance(without: np.ndarray) -> float:
    return float((len(without) - 1) / len(without) * np.square(without - without.mean()).sum())
