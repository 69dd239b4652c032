"""Predictions of images without a label: a calibrated probability each, and which of them to believe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excb.inference.accuracy import share_interval

from .label_kinds import LabelKind
from .validation import Validated

BINS = 10  # of the calibration error, with equally many images each
LEAST = 20  # images that a threshold of certainty is judged by, at least


@dataclass(frozen=True)
class Guess:
    """A label that is guessed; an image that may have several labels may have several guesses.

    Attributes:
        path: of the image.
        label: the likeliest class.
        probability: of it, calibrated.
        sure: whether it is above the threshold.
        second: the likeliest class that is not guessed.
        copy_of: a labelled image that looks the same, whose label this is; empty where there is none. It is sure then,
            whatever its probability.
    """

    path: str
    label: str
    probability: float
    sure: bool
    second: str
    copy_of: str = ""


@dataclass(frozen=True)
class Certainty:
    """From which probability on predictions are right often enough, judged by cross-validated ones.

    Attributes:
        wanted: share of right answers among sure ones, of 1.
        threshold: the probability; above 1 where no threshold is enough.
        share: of guesses that are sure, of 1.
        right: share of right answers among them, of 1.
        interval: of `right`, 95 %, in percent; None where none is sure.
        calibration_error: mean difference of probability and accuracy over `BINS` bins (ECE), of 1.
    """

    wanted: float
    threshold: float
    share: float
    right: float
    interval: tuple[float, float] | None
    calibration_error: float

    @property
    def words(self) -> str:
        """For people."""
        error = f"Probabilities are off by {100 * self.calibration_error:.1f} points on average."
        if self.interval is None:
            return (
                f"No threshold has {100 * self.wanted:.0f} % right answers, so guesses are unsure: label more "
                f"images, or ask for fewer right answers (--sure). {error}"
            )
        low, high = self.interval
        return (
            f"Guesses from {self.threshold:.2f} on are called sure: {100 * self.share:.0f} % of them, of which "
            f"{100 * self.right:.1f} % ({low:.1f} to {high:.1f}) are right by cross-validation. {error}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "wanted": self.wanted,
            "threshold": None if self.interval is None else round(self.threshold, 6),
            "sure_share": round(self.share, 6),
            "right_share": None if self.interval is None else round(self.right, 6),
            "right_interval": self.interval,
            "calibration_error": round(self.calibration_error, 6),
        }


@dataclass(frozen=True)
class GuessedLabels:
    """Guesses of all images without a label, in the order of their paths; one of each image, or several."""

    network: str
    guesses: tuple[Guess, ...]
    certainty: Certainty

    def __len__(self) -> int:
        return len(self.guesses)

    @property
    def sure(self) -> list[Guess]:
        """The likeliest first."""
        return sorted((each for each in self.guesses if each.sure), key=lambda each: -each.probability)

    @property
    def unsure(self) -> list[Guess]:
        """The least likely first."""
        return sorted((each for each in self.guesses if not each.sure), key=lambda each: each.probability)


def certainty_of(validated: Validated, wanted: float) -> Certainty:
    """The lowest threshold from which on enough cross-validated guesses are right."""
    kind, chances = validated.kind, validated.probabilities
    guessed, truth = kind.guessed(chances), kind.truth(validated.labels, chances.shape[1])
    if not bool(guessed.any()):
        return Certainty(wanted, 2.0, 0.0, 0.0, None, adaptive_calibration_error(chances.flatten(), truth.flatten()))
    confidence, order = chances[guessed].sort(descending=True)
    hits = truth[guessed][order]
    right = hits.double().cumsum(0) / torch.arange(1, len(hits) + 1)
    last = torch.ones(len(hits), dtype=torch.bool)
    last[:-1] = confidence[1:] < confidence[:-1]  # equal probabilities are sure together
    enough = last & (right >= wanted) & (torch.arange(1, len(hits) + 1) >= min(LEAST, len(hits)))
    error = adaptive_calibration_error(confidence, hits)
    if not bool(enough.any()):
        return Certainty(wanted, 2.0, 0.0, 0.0, None, error)
    count = int(enough.nonzero()[-1]) + 1
    share, images = float(right[count - 1]), guessed.nonzero()[:, 0][order[:count]].unique()
    interval = share_interval(share, len(images))
    return Certainty(wanted, float(confidence[count - 1]), count / len(hits), share, interval, error)


def adaptive_calibration_error(confidence: Tensor, hits: Tensor) -> float:
    """The expected calibration error with bins of equally many images (Nguyen and O'Connor, EMNLP 2015).

    Args:
        confidence: probability of the answer, [n].
        hits: whether it is right, bool [n].
    """
    order = confidence.argsort()
    bins = np.array_split(order.numpy(), min(BINS, len(order)))
    gaps = [abs(float(confidence[part].mean() - hits[part].double().mean())) * len(part) for part in bins]
    return sum(gaps) / len(order)


def guesses_of(
    kind: LabelKind, paths: list[str], probabilities: Tensor, classes: tuple[str, ...], threshold: float
) -> list[Guess]:
    """Guesses from probabilities [Q, K] of two classes or more, image by image, of each the likeliest first."""
    guessed = kind.guessed(probabilities)
    ranked, order = probabilities.sort(dim=1, descending=True)
    counts = guessed.sum(1).tolist()
    return [
        Guess(path, classes[label], chance, chance >= threshold, _next(classes, labels, count))
        for path, labels, chances, count in zip(paths, order.tolist(), ranked.tolist(), counts, strict=True)
        for label, chance in zip(labels[:count], chances[:count], strict=True)
    ]


def with_copies(guesses: Sequence[Guess], labelled: Mapping[str, tuple[str, str]]) -> list[Guess]:
    """Guesses of images with one label; those that look like a labelled image have its label.

    Args:
        guesses: one of each image.
        labelled: of images that look like labelled ones, that image and its label.
    """
    return [
        each
        if each.path not in labelled
        else replace(
            each,
            label=(label := labelled[each.path][1]),
            sure=True,
            second=each.second if label == each.label else each.label,
            copy_of=labelled[each.path][0],
        )
        for each in guesses
    ]


def _next(classes: tuple[str, ...], labels: list[int], count: int) -> str:
    """The likeliest label that is not guessed; none where all are."""
    return classes[labels[count]] if count < len(labels) else ""
