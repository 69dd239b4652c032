"""Metrics of semantic segmentation from areas: IoU of every class, their mean, pixel accuracy, with their spread.

Letters: N images, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from excb.inference.estimate import Estimate
from excb.inference.jackknife import jackknife

from ..layouts.masks import IGNORED


@dataclass(frozen=True)
class Areas:
    """Numbers of pixels of every image and class, [N, C] int64 each. Pixels without a true class are in none."""

    right: np.ndarray  # predicted as their true class
    predicted: np.ndarray  # predicted as the class
    true: np.ndarray  # of the class
    # What was predicted as what in every image, [pairs, 3] int64 each (see `confusion_of`); only where asked for.
    confusions: Sequence[np.ndarray] | None = None

    def iou(self) -> np.ndarray:
        """Intersection over union of every class, all images together, [C] float64; NaN of a class without a pixel."""
        return _iou(self.right.sum(0), self.predicted.sum(0), self.true.sum(0))

    def miou(self) -> float:
        """The mean of `iou` over the classes that are true or predicted anywhere, in percent."""
        return 100 * float(np.nanmean(self.iou()))

    def pixel_accuracy(self) -> float:
        """The share of all pixels that are right, in percent."""
        return 100 * int(self.right.sum()) / int(self.true.sum())


# Each measure of resampled areas [resamples, C] (right, predicted, true), as a share of 1; NaN without a pixel.
MEASURES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "miou": lambda right, predicted, true: _mean(_iou(right, predicted, true)),
    "pixel_accuracy": lambda right, _predicted, true: _quotient(right.sum(-1), true.sum(-1)),
}


# mIoU once predicted classes are matched to true ones: over all classes, so one without a pixel has an IoU of 0.
HUNGARIAN = "miou_hungarian"
MATCHED_MEASURES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    HUNGARIAN: lambda right, predicted, true: np.nan_to_num(_iou(right, predicted, true)).mean(-1),
}


def figure_name(run: str, measure: str) -> str:
    """The name of a figure: of the run "knn_1of8", "dense_knn_miou_1of8"."""
    head, _, part = run.partition("_")
    return f"dense_{head}_{measure}" + (f"_{part}" if part else "")


def areas_of(predicted: np.ndarray, true: np.ndarray, classes: int) -> np.ndarray:
    """The areas of one image: right, predicted and true pixels of every class.

    Args:
        predicted: [H, W] classes; `IGNORED` where nothing was predicted.
        true: [H, W] classes; `IGNORED` where there is none.
        classes: C.

    Returns:
        [3, C] int64. Pixels without a true class, or without a prediction, are in none.
    """
    counted = (true != IGNORED) & (predicted != IGNORED)
    predicted, true = predicted[counted], true[counted]
    kinds = (true[predicted == true], predicted, true)
    return np.stack([np.bincount(kind, minlength=classes) for kind in kinds])


def confusion_of(predicted: np.ndarray, true: np.ndarray, classes: int) -> np.ndarray:
    """The pairs of true and predicted class in one image, given as in `areas_of`.

    Returns:
        [pairs, 3] int64: true class, predicted class and pixels, of the pairs that occur.
    """
    counted = (true != IGNORED) & (predicted != IGNORED)
    pairs, pixels = np.unique(true[counted].astype(np.int64) * classes + predicted[counted], return_counts=True)
    return np.stack([pairs // classes, pairs % classes, pixels], axis=1)


def stacked(images: Sequence[np.ndarray], confusions: Sequence[np.ndarray] | None = None) -> Areas:
    """The areas of all images, of [3, C] each."""
    right, predicted, true = np.stack(images).transpose(1, 0, 2)
    return Areas(right, predicted, true, confusions)


def matched(areas: Areas) -> Areas:
    """The areas once each predicted class counts as the true class it is matched to, one to one.

    The matching (Kuhn, 1955) has the largest sum of IoUs over all images; `PredsmIoU` of
    github.com/vpariza/open-hummingbird-eval at 5e79da2 has it for predicted classes that are clusters.

    Args:
        areas: with confusions.
    """
    from scipy.optimize import linear_sum_assignment

    assert areas.confusions is not None
    images, classes = areas.true.shape
    whole = np.zeros((classes, classes), np.int64)
    for pairs in areas.confusions:
        whole[pairs[:, 0], pairs[:, 1]] += pairs[:, 2]
    iou = np.nan_to_num(_iou(whole, whole.sum(0)[None], whole.sum(1)[:, None]))
    _, of = linear_sum_assignment(iou, maximize=True)  # the predicted class of every true one
    right = np.zeros((images, classes), np.int64)
    for image, pairs in enumerate(areas.confusions):
        true, _, pixels = pairs[of[pairs[:, 0]] == pairs[:, 1]].T
        right[image, true] = pixels
    return Areas(right, areas.predicted[:, of], areas.true)


def area_spread(runs: Sequence[Areas], measure: str) -> Estimate:
    """A measure's mean over runs, as a share of 1, and its spread by leaving out images, each from all runs.

    A measure is that of all pixels together, so a class that only one image shows is missing without it.

    Args:
        runs: of the same images, such as those of several seeds.
        measure: one of `MEASURES`, or of matched areas one of `MATCHED_MEASURES`.
    """
    return jackknife(*_with_and_without(runs, measure))


def area_difference(first: Sequence[Areas], second: Sequence[Areas], measure: str) -> Estimate:
    """Second minus first, likewise; both of the same images."""
    (one, without_one), (other, without_other) = (_with_and_without(runs, measure) for runs in (first, second))
    return jackknife(other - one, without_other - without_one)


def _with_and_without(runs: Sequence[Areas], measure: str) -> tuple[float, np.ndarray]:
    """A measure's mean over runs, and without each image, [N]."""
    value, without = (MEASURES | MATCHED_MEASURES)[measure], []
    for run in runs:
        parts = run.right, run.predicted, run.true
        without.append(value(*(part.sum(0) - part for part in parts)))
    whole = [value(*(part.sum(0) for part in (run.right, run.predicted, run.true))) for run in runs]
    return float(np.mean(whole)), np.asarray(np.mean(without, axis=0))


def _iou(right: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    return _quotient(right, predicted + true - right)


def _mean(shares: np.ndarray) -> np.ndarray:
    """The mean over the last axis without NaN."""
    return _quotient(np.nansum(shares, axis=-1), np.isfinite(shares).sum(-1))


def _quotient(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    """part / whole, NaN where the whole is 0."""
    return np.asarray(np.divide(part, total, out=np.full(np.shape(total), np.nan), where=np.asarray(total) > 0))
