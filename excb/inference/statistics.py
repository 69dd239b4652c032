"""Statistics of scores of either kind: formulas of hits, resamples of numbers.

The sampling unit of all of them is the test image.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from excb.inference.accuracy import accuracy, accuracy_interval, difference_interval, discordant, mcnemar
from excb.inference.basis import AS_HITS, BOOTSTRAP, STUDENT, WILSON, Basis
from excb.inference.means import (
    counted,
    hit_like,
    mean_difference_interval,
    mean_interval,
    mean_percent,
    randomisation_test,
)
from excb.inference.paired import PairedTest


def percent(scores: Tensor) -> float:
    """100 times the mean of scores [Q]: bool, or float64 without the NaN."""
    return accuracy(scores) if scores.dtype == torch.bool else mean_percent(scores)


def interval(scores: Tensor) -> tuple[float, float]:
    """The 95 % interval of `percent`, over the images."""
    return accuracy_interval(scores) if scores.dtype == torch.bool else mean_interval(scores)


def basis(scores: Tensor) -> Basis:
    """The basis of `interval`."""
    if scores.dtype == torch.bool:
        return WILSON
    known = counted(scores).numpy()
    if known.min() < 0 or known.max() > 1:
        return STUDENT
    return AS_HITS if hit_like(known) else BOOTSTRAP


def by_class(scores: Tensor, targets: Tensor, classes: Sequence[str]) -> dict[str, float | None]:
    """`percent` of each class's images, None for classes without one that counts.

    Args:
        scores: [Q] bool, or float64 with NaN for images that do not count.
        targets: [Q] int64, indices into `classes`.
        classes: names; the index is added to repeated ones, such as ImageNet's two "crane".
    """
    times, means = Counter(classes), dict[str, float | None]()
    for index, name in enumerate(classes):
        own = scores[(targets == index) & ~scores.isnan()]
        label = name if times[name] == 1 else f"{name} ({index})"
        means[label] = round(percent(own), 4) if len(own) else None
    return means


def compared(first: Tensor, second: Tensor) -> PairedTest:
    """Compare the scores [Q] of two results: hits by McNemar's test, anything else by a randomisation test.

    Images count where they count in both.
    """
    if first.dtype == second.dtype == torch.bool:
        only_first, only_second = discordant(first, second)
        return PairedTest(
            accuracy(first),
            accuracy(second),
            100 * (only_second - only_first) / len(first),
            difference_interval(first, second),
            only_first,
            only_second,
            mcnemar(first, second),
            "McNemar (mid-P)",
        )
    first, second = first.double(), second.double()
    both = ~(first.isnan() | second.isnan())
    first, second = first[both], second[both]
    return PairedTest(
        mean_percent(first),
        mean_percent(second),
        mean_percent(second - first),
        mean_difference_interval(second - first),
        int((first > second).sum()),
        int((second > first).sum()),
        randomisation_test(second - first),
        "randomisation",
    )
