"""One label an image or several: how scores of labels become probabilities, guesses, a loss and a figure.

Letters: n images, K labels.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from ..probes.logistic import NEVER

GUESSED = 0.5  # probability from which on an image is guessed to have one of several labels
COMPARISONS = 2**24  # of pairs of labels at once


class LabelKind(ABC):
    """One label an image, or several.

    Attributes:
        figure: its name, for people.
    """

    figure: str

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """Of every label, [n, K] -> [n, K]."""

    @abstractmethod
    def hits(self, scores: Tensor, labels: Tensor) -> Tensor:
        """How right each image is, [n], by logits or probabilities [n, K]."""

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, temperature: float = 1.0) -> float:
        """The mean over images, with logits divided by a temperature."""

    @abstractmethod
    def guessed(self, probabilities: Tensor) -> Tensor:
        """The labels that are guessed, bool [n, K]."""

    @abstractmethod
    def truth(self, labels: Tensor, classes: int) -> Tensor:
        """The labels that images have, bool [n, K]."""

    @abstractmethod
    def margins(self, probabilities: Tensor) -> Tensor:
        """How far each image is from another guess, [n]."""


class OneLabel(LabelKind):
    """Each image has one label, labels int64 [n]."""

    figure = "accuracy"

    def probabilities(self, logits: Tensor) -> Tensor:
        """Softmax."""
        return logits.softmax(1)

    def hits(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Whether the likeliest class is the label, bool."""
        return scores.argmax(1) == labels

    def loss(self, logits: Tensor, labels: Tensor, temperature: float = 1.0) -> float:
        """Cross-entropy of the images whose class the models knew."""
        known = logits.gather(1, labels[:, None])[:, 0] > NEVER / 2
        return float(F.cross_entropy(logits[known] / temperature, labels[known])) if bool(known.any()) else 0.0

    def guessed(self, probabilities: Tensor) -> Tensor:
        """The likeliest class."""
        return self.truth(probabilities.argmax(1), probabilities.shape[1])

    def truth(self, labels: Tensor, classes: int) -> Tensor:
        """One-hot."""
        return F.one_hot(labels, classes).bool()

    def margins(self, probabilities: Tensor) -> Tensor:
        """The difference of the two likeliest classes."""
        best = probabilities.topk(2, dim=1).values
        return best[:, 0] - best[:, 1]


class SeveralLabels(LabelKind):
    """Each image has any of the labels, labels int8 [n, K] of 0 and 1."""

    figure = "label ranking average precision"

    def probabilities(self, logits: Tensor) -> Tensor:
        """Sigmoid."""
        return logits.sigmoid()

    def hits(self, scores: Tensor, labels: Tensor) -> Tensor:
        """`ranked`."""
        return ranked(scores, labels)

    def loss(self, logits: Tensor, labels: Tensor, temperature: float = 1.0) -> float:
        """Binary cross-entropy."""
        return float(F.binary_cross_entropy_with_logits(logits / temperature, labels.to(logits.dtype)))

    def guessed(self, probabilities: Tensor) -> Tensor:
        """Those of `GUESSED` or more: perhaps none."""
        return probabilities >= GUESSED

    def truth(self, labels: Tensor, classes: int) -> Tensor:  # noqa: ARG002 - that of one label needs it
        """As they are."""
        return labels.bool()

    def margins(self, probabilities: Tensor) -> Tensor:
        """Of the label that is least certain."""
        return (2 * probabilities - 1).abs().min(1).values


ONE, SEVERAL = OneLabel(), SeveralLabels()


def kind_of_labels(labels: Tensor) -> LabelKind:
    """By the labels' shape, [n] or [n, K]."""
    return ONE if labels.ndim == 1 else SEVERAL


def ranked(scores: Tensor, labels: Tensor) -> Tensor:
    """Label ranking average precision of every image (Schapire and Singer, Machine Learning, 2000), [n] float64.

    For each label that an image has: the share of true ones among those that score no less. The mean over its labels;
    1 of images with all labels or none. It is scikit-learn's `label_ranking_average_precision_score` before the mean.

    Args:
        scores: [n, K].
        labels: [n, K] of 0 and 1.
    """
    true, found = labels.bool(), list[Tensor]()
    size = max(1, COMPARISONS // max(1, scores.shape[1]) ** 2)
    for own, given in zip(scores.split(size), true.split(size), strict=True):
        above = own[:, None, :] >= own[:, :, None]
        share = (above & given[:, None, :]).sum(2).double() / above.sum(2)
        number = given.sum(1)
        mean = (share * given).sum(1) / number.clamp(min=1)
        found.append(torch.where((number == 0) | (number == given.shape[1]), 1.0, mean))
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)
