"""Average precision of multi-label classification, with area or at 11 points, and its spread over images.

Letters: Q images, C classes, R resamples. Images of equal score count together: precision and recall exist at
thresholds only, so that no figure depends on the order of images, and an image that counts twice is two images.
"""

from collections.abc import Callable

import numpy as np

from excb.inference.estimate import Estimate
from excb.inference.jackknife import Replicates

# The part of the precision-recall curve that a class's figure sums up: hits [R, P], envelope [R, P] -> [R].
Summary = Callable[[np.ndarray, np.ndarray], np.ndarray]


def eleven_points(hits: np.ndarray, envelope: np.ndarray) -> np.ndarray:
    """The mean of the best precision at recall 0, 0.1, ..., 1 or more: VOC 2007's average precision.

    Args:
        hits: [R, P] relevant images up to each threshold.
        envelope: [R, P] best precision at this threshold or a lower one.

    Returns:
        [R], 0 to 1.
    """
    total, points = hits[:, -1:], []
    for tenth in range(11):
        first = (10 * hits >= tenth * total).argmax(1)  # in whole numbers, for a recall of 0.3 is not a float
        points.append(envelope[np.arange(len(envelope)), first])
    means: np.ndarray = np.stack(points).mean(0)
    return means


def area(hits: np.ndarray, envelope: np.ndarray) -> np.ndarray:
    """The area below the precision that never rises with recall: VOC's average precision since 2010."""
    values: np.ndarray = (np.diff(hits, axis=1, prepend=0) * envelope).sum(1) / np.maximum(hits[:, -1], 1)
    return values


def precision_by_class(
    scores: np.ndarray, targets: np.ndarray, summary: Summary, weights: np.ndarray | None = None
) -> np.ndarray:
    """Average precision of every class.

    Args:
        scores: [Q, C], higher for images that are more likely of the class.
        targets: [Q, C] int8: 1 of the class, 0 not, -1 ignored.
        summary: `eleven_points` or `area`.
        weights: [R, Q] whole numbers, how often each image counts; by default one row of ones.

    Returns:
        [R, C], 0 to 1; NaN where no image that counts is of the class.
    """
    rows = np.ones((1, len(scores)), np.int64) if weights is None else weights
    values = np.full((len(rows), scores.shape[1]), np.nan)
    for label in range(scores.shape[1]):
        known = np.flatnonzero(targets[:, label] >= 0)
        order = known[np.argsort(-scores[known, label], kind="stable")]
        if not len(order):
            continue
        ranked = scores[order, label]
        thresholds = np.append(np.flatnonzero(np.diff(ranked)), len(order) - 1)
        counted = rows[:, order]
        hits = (counted * (targets[order, label] == 1)).cumsum(1)[:, thresholds]
        precision = hits / np.maximum(counted.cumsum(1)[:, thresholds], 1)
        envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        values[:, label] = np.where(hits[:, -1] > 0, summary(hits, envelope), np.nan)
    return values


def mean(scores: np.ndarray, targets: np.ndarray, summary: Summary, weights: np.ndarray | None = None) -> np.ndarray:
    """mAP [R], 0 to 1: the mean over the classes of which an image counts; NaN without one.

    Arguments as `precision_by_class`.
    """
    values = precision_by_class(scores, targets, summary, weights)
    there = ~np.isnan(values)
    means: np.ndarray = np.where(there, values, 0).sum(1) / np.where(there.any(1), there.sum(1), np.nan)
    return means


def of_labels(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """How high each image's own labels are among all: label ranking average precision (scikit-learn).

    Args:
        scores: [Q, C].
        targets: [Q, C] int8; ignored labels are left out.

    Returns:
        [Q], 0 to 1: the mean over an image's labels of the share of its own among those scored as high; 1 without any.
    """
    values = np.ones(len(scores))
    for image, (row, target) in enumerate(zip(scores, targets, strict=True)):
        known, own = row[target >= 0], row[target == 1]
        if len(own):
            above = (known >= own[:, None]).sum(1)
            values[image] = ((own >= own[:, None]).sum(1) / above).mean()
    return values


def precision_spread(scores: np.ndarray, targets: np.ndarray, summary: Summary) -> Estimate:
    """mAP and its spread over the images; arguments as `precision_by_class`."""
    return _replicates(scores, targets, summary).spread()


def precision_difference(first: np.ndarray, second: np.ndarray, targets: np.ndarray, summary: Summary) -> Estimate:
    """mAP of the second scores minus that of the first, and its spread over the images, which are the same."""
    one, other = (_replicates(scores, targets, summary) for scores in (first, second))
    return other.lead_over(one)


def _replicates(scores: np.ndarray, targets: np.ndarray, summary: Summary) -> Replicates:
    return Replicates(lambda weights: mean(scores, targets, summary, weights), len(scores))
