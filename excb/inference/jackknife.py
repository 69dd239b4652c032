"""The jackknife: the spread of figures that are no mean over images, such as mAP over classes or mean IoU.

The sampling unit is the image, or a group of images where there are many. Such a figure depends on how many images
there are: mAP falls and mIoU rises with more of them. The interval is about test sets of this size.
"""

from collections.abc import Iterator

import numpy as np

from excb.inference.estimate import LEAST, Estimate
from excb.seeding import Purpose, generator

MOST_GROUPS = 200
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


def left_out(images: int) -> Iterator[np.ndarray]:
    """Which images remain without each group, in blocks [groups, images] int64 of 0 and 1.

    Images are divided into at most `MOST_GROUPS` groups at random, equally for all figures of equally many images.
    """
    groups = min(images, MOST_GROUPS)
    group = generator(Purpose.BOOTSTRAP, images, 3).permutation(np.arange(images) % groups)
    step = max(1, _AT_ONCE // images)
    for start in range(0, groups, step):
        yield (group != np.arange(start, min(start + step, groups))[:, None]).astype(np.int64)
