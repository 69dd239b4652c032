"""The jackknife: the spread of figures that are no mean over images, such as mAP over classes or mean IoU.

The sampling unit is the image, or a group of images where there are many. Such a figure depends on how many images
there are: mAP falls and mIoU rises with more of them. The interval is about test sets of this size.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

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
    groups = len(known)
    if groups < LEAST:
        return Estimate(value, float("nan"), 1)
    error = np.sqrt((groups - 1) / groups * np.square(known - known.mean()).sum())
    return Estimate(value, float(error), groups - 1)


@dataclass(frozen=True)
class Replicates:
    """A figure of all images, and without some of them; two of the same images can be compared.

    Attributes:
        figure: weights [R, images] of 0 and 1 -> [R].
        images: how many.
    """

    figure: Callable[[np.ndarray], np.ndarray]
    images: int

    @cached_property
    def value(self) -> float:
        """The figure of all images."""
        return float(self.figure(np.ones((1, self.images), np.int64))[0])

    @cached_property
    def without(self) -> np.ndarray:
        """It without each group of images, [G]."""
        return np.concatenate([self.figure(weights) for weights in left_out(self.images)])

    @cached_property
    def without_pairs(self) -> np.ndarray:
        """It without both groups of each of `group_pairs`, [P]."""
        return np.concatenate([self.figure(weights) for weights in pairs_left_out(self.images)])

    def spread(self) -> Estimate:
        """The figure with its spread by the jackknife."""
        return jackknife(self.value, self.without)

    def lead_over(self, other: "Replicates") -> Estimate:
        """This figure minus the other, by the jackknife less half of what it counts too often.

        What two images do together the jackknife counts twice, what three do three times, and so on (Efron and Stein,
        Annals of Statistics, 1981). Their second differences have it once for two, three times for three, and six times
        for four. Without the half of that, two and three count 1.5 times, and four once. Without all of it, the
        variance of a difference of mAPs is a tenth too small, and with all of the jackknife's a quarter too large.
        """
        value, without = self.value - other.value, self.without - other.without
        plain, groups = jackknife(value, without), len(without)
        if np.isnan(plain.error):
            return plain
        first, second = group_pairs(self.images).T
        # Weighted as by Efron and Stein, so that effects of single groups cancel, whatever the number of images.
        both = (groups - 2) * (self.without_pairs - other.without_pairs)
        differences = groups * value - (groups - 1) * (without[first] + without[second]) + both
        variance, counted_again = plain.error**2, float(np.nanvar(differences)) / 2
        return Estimate(value, math.sqrt(max(variance - counted_again / 2, variance / 2)), plain.freedom)


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
