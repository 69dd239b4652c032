"""Networks and references compared on the labels of a folder: accuracy of cross-validated predictions, with intervals.

The sampling unit is the group of images that stay together (`grouping.py`): copies of an image say nothing new.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from excb.inference.accuracy import share_interval
from excb.inference.estimate import Estimate

from .label_kinds import kind_of_labels
from .validation import Validated

Kind = Literal["network", "reference"]


@dataclass(frozen=True)
class Compared:
    """A network or a reference.

    Attributes:
        name: of a network as `excb.load` takes it, or of the reference.
        kind: which of both.
        validated: its predictions of the labelled images.
        groups: of the labelled images, int64 [n].
    """

    name: str
    kind: Kind
    validated: Validated
    groups: np.ndarray

    @property
    def accuracy(self) -> float:
        """In percent; of several labels, the mean label ranking average precision."""
        return 100 * float(self.validated.hits.double().mean())

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, in percent: Wilson's, of as many images as the groups are worth."""
        return share_interval(self.accuracy / 100, effective(self.validated.hits, self.groups))

    def lead(self, other: "Compared") -> Estimate:
        """Difference to another on the same images, as a share.

        Half an image is added to each of a pair's four outcomes (Agresti and Min, Statistics in Medicine, 2005), so
        there is an error even where both differ on all images, or on none.
        """
        difference = self.validated.hits.double() - other.validated.hits.double()
        mean, number = _grouped_mean(difference.numpy(), self.groups), len(difference)
        error = math.sqrt((mean.error * number) ** 2 + 1) / (number + 2)
        return Estimate(mean.value * number / (number + 2), error, mean.freedom)

    def is_ahead(self, other: "Compared", *, tries: int = 1) -> bool:
        """Whether it is ahead of another by more than chance; see `Estimate.margin` for `tries`."""
        lead = self.lead(other)
        return lead.value > 0 and lead.value > lead.margin(tries=tries)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        figure = self.validated.kind.figure.replace(" ", "_")
        values = {"name": self.name, "kind": self.kind, figure: round(self.accuracy, 4), "interval": self.interval}
        return values | ({} if self.validated.converged else {"converged": False})


@dataclass(frozen=True)
class NetworkComparison:
    """All that were compared, the best first within networks, then references."""

    entries: tuple[Compared, ...]
    labelled: int
    classes: int
    single: int  # classes of which all labelled images are one group: no model can predict them

    @property
    def figure(self) -> str:
        """The figure's name."""
        return self.entries[0].validated.kind.figure

    @property
    def best(self) -> Compared:
        """The network with the most right answers; of equals the first."""
        return self.of("network")[0]

    def of(self, kind: Kind) -> list[Compared]:
        """The entries of a kind, best first."""
        found = [entry for entry in self.entries if entry.kind == kind]
        return sorted(found, key=lambda entry: -entry.accuracy)

    @property
    def level(self) -> list[Compared]:
        """Networks that are behind the best by no more than chance."""
        others = self.of("network")[1:]
        return [other for other in others if not self.best.is_ahead(other, tries=len(others))]

    @property
    def words(self) -> str:
        """The finding in a sentence or two."""
        best, reference = self.best, self.of("reference")[0]
        said = f"{best.name} ({best.accuracy:.1f} %)"
        against = f"{reference.name} ({reference.accuracy:.1f} %)"
        if not best.is_ahead(reference, tries=len(self.of("network"))):
            return (
                f"No network is ahead of {against} by more than chance; the best is {said}. Predictions from these "
                "labels show little: add labels, or try other networks."
            )
        *first, last = [f"{other.name} ({other.accuracy:.1f} %)" for other in self.level] or [""]
        level = f"{', '.join(first)} and {last}" if first else last
        rest = f" Level with it within chance: {level}." if level else ""
        return f"{said} is the best network here, ahead of {against}, the best reference.{rest}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "labelled": self.labelled,
            "classes": self.classes,
            "classes_of_one_group": self.single,
            "figure": f"{self.figure} of logistic regression, cross-validated over groups",
            "interval": {"unit": "group of images", "method": "Wilson, with the design effect of groups"},
            "words": self.words,
            "entries": [entry.to_dict() for entry in (*self.of("network"), *self.of("reference"))],
        }


def most_frequent(labels: Tensor, groups: np.ndarray, classes: int) -> Compared:
    """The reference that always guesses the most frequent class, or ranks labels by how many images have them."""
    kind = kind_of_labels(labels)
    shares = kind.truth(labels, classes).double().mean(0)
    predicted = shares.expand(len(labels), classes)
    validated = Validated(predicted, labels, kind.hits(predicted, labels), 1.0, 0.0, True)
    return Compared(
        "most frequent class" if labels.ndim == 1 else "most frequent labels", "reference", validated, groups
    )


def single_groups(truth: Tensor, groups: np.ndarray) -> int:
    """Classes of which all images are in one group; truth is bool [n, K]."""
    return sum(len(np.unique(groups[has])) == 1 for has in truth.T.numpy())


def effective(hits: Tensor, groups: np.ndarray) -> float:
    """How many independent images with hits of 0 or 1 the hits [n] are worth.

    Of hits that are 0 or 1, n over the design effect of groups, which is at least 1; those between vary less.
    """
    share, number = float(hits.double().mean()), len(hits)
    alone = share * (1 - share) / number
    error = _grouped_mean(hits.double().numpy(), groups).error
    if alone == 0 or math.isnan(error) or error == 0:
        return number
    effect = error**2 / alone
    return number / (max(1.0, effect) if hits.dtype == torch.bool else effect)


def _grouped_mean(values: np.ndarray, groups: np.ndarray) -> Estimate:
    """The mean of values [n], with the error of a mean over whole groups."""
    _, place = np.unique(groups, return_inverse=True)
    number = int(place.max()) + 1
    if number < 2:
        return Estimate(float(values.mean()), math.nan, 1)
    mean = float(values.mean())
    totals = np.bincount(place, values - mean)
    error = math.sqrt(number / (number - 1) * float((totals**2).sum())) / len(values)
    return Estimate(mean, error, number - 1)
