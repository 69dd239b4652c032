"""The figures of sets, each as its papers have it, and their spread over the test images.

Letters: Q test images, C classes, R resamples.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from excb.inference.accuracy import accuracy_interval
from excb.inference.basis import JACKKNIFE, WILSON, Basis
from excb.inference.jackknife import Replicates
from excb.references.guessing import guessed_classes

from ..reporting import average_precision
from ..reporting.average_precision import area, eleven_points


@dataclass(frozen=True)
class Metric:
    """A figure.

    Attributes:
        name: in TOML files and results.
        title: for people.
        of: answers, targets and weights [R, Q] -> [R], 0 to 1. Answers are hits [Q] bool with class indices [Q] as
            targets; or, where `label_sets`, scores [Q, C] with targets [Q, C] of 1, 0 and -1.
        label_sets: whether images have a set of labels each.
    """

    name: str
    title: str
    of: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    label_sets: bool = False

    def percent(self, answers: np.ndarray, targets: np.ndarray) -> float:
        """The figure in percent."""
        return 100 * float(self.of(answers, targets, np.ones((1, len(targets)), np.int64))[0])

    def interval(self, answers: np.ndarray, targets: np.ndarray) -> tuple[float, float] | None:
        """The 95 % interval in percent over the test images; None of too few."""
        if self.name == TOP1.name:
            return accuracy_interval(torch.from_numpy(answers))
        return self.replicates(answers, targets).spread().interval()

    @property
    def basis(self) -> Basis:
        """The sampling unit and the method of `interval`."""
        return WILSON if self.name == TOP1.name else JACKKNIFE

    def replicates(self, answers: np.ndarray, targets: np.ndarray) -> Replicates:
        """The figure, 0 to 1, and what it is without some images; the same ones for all answers to a set."""
        return Replicates(lambda weights: self.of(answers, targets, weights), len(targets))

    def score(self, scores: np.ndarray, targets: np.ndarray) -> float:
        """The figure of scores [Q, C], in percent: the class of highest score is the guess."""
        return self.percent(scores if self.label_sets else scores.argmax(1) == targets, targets)

    def majority(self, train: np.ndarray, test: np.ndarray) -> float:
        """The figure of a guess that looks at no image: train's most frequent class, or equal scores for all.

        Of classes equally frequent it is the mean.
        """
        if self.label_sets:
            return self.percent(np.zeros(test.shape), test)
        _, tied = guessed_classes(torch.from_numpy(train))
        return float(np.mean([self.percent(test == label, test) for label in tied.tolist()]))


def _top1(hits: np.ndarray, _targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
    share: np.ndarray = weights @ hits / weights.sum(1)
    return share


def _mean_per_class(hits: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The mean of the accuracies of classes with an image that counts."""
    member = (targets[:, None] == np.unique(targets)).astype(np.float64)
    images, right = weights @ member, weights @ (member * hits[:, None])
    there = images > 0
    means: np.ndarray = (right / np.maximum(images, 1)).sum(1) / there.sum(1)
    return means


TOP1 = Metric("top1", "top-1", _top1)
MEAN_PER_CLASS = Metric("mean_per_class", "mean per class", _mean_per_class)
MAP11 = Metric("mAP11", "11-point mAP", lambda s, t, w: average_precision.mean(s, t, eleven_points, w), label_sets=True)
MAP = Metric("mAP", "mAP", lambda s, t, w: average_precision.mean(s, t, area, w), label_sets=True)
METRICS = {metric.name: metric for metric in (TOP1, MEAN_PER_CLASS, MAP11, MAP)}
