"""The cost of corruption: calibration, corruption errors relative to a reference, and drops, with intervals."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from excb.inference.jackknife import jackknife

BINS = 15


@dataclass(frozen=True)
class Answers:
    """A head's answers for every image of a set."""

    hits: Tensor  # [Q] bool
    confidence: Tensor  # [Q] float64, the probability of the class that it names

    @classmethod
    def of(cls, logits: Tensor, right: Tensor, candidates: Tensor | None = None) -> "Answers":
        """The answers by logits [Q, C].

        Args:
            logits: of the head.
            right: [Q, C] bool, the classes that are right for each image.
            candidates: [C] bool, the classes that may be named; None is all.
        """
        if candidates is not None:
            logits = logits.masked_fill(~candidates, -torch.inf)
        confidence, predicted = logits.double().softmax(1).max(1)
        return cls(right[torch.arange(len(right)), predicted], confidence)

    def chosen(self, images: Tensor) -> "Answers":
        """Those of some images, by a mask or by indices."""
        return Answers(self.hits[images], self.confidence[images])


def calibration_error(answers: Answers, bins: int = BINS) -> float:
    """Expected calibration error in percent (Guo et al., 2017).

    The mean over the images of |accuracy - mean confidence| of their bin; bins are (0, 1/15], ..., (14/15, 1].
    """
    place = (answers.confidence * bins).ceil().long().clamp(1, bins) - 1
    gaps = torch.zeros(bins, dtype=torch.float64)
    gaps.index_add_(0, place, answers.hits.double() - answers.confidence.double())
    return 100 * float(gaps.abs().sum()) / len(place)


@dataclass(frozen=True)
class Reference:
    """Errors that corruption errors are relative to, 0 to 1."""

    name: str  # as people call it
    clean: float
    corrupted: Mapping[str, float]  # by corruption, means over the severities
    digest: str = ""  # of what was measured; empty for published errors


def corruption_error(hits: Mapping[str, Tensor], reference: Reference) -> Tensor:
    """Each image's part [Q] of mCE: the mean over corruptions of error / the reference's error.

    Args:
        hits: by corruption, [Q] float64: the share of severities at which an image is right.
        reference: its errors are above 0.
    """
    return torch.stack([(1 - own) / reference.corrupted[name] for name, own in hits.items()]).mean(0)


def relative_corruption_error(hits: Mapping[str, Tensor], clean: Tensor, reference: Reference) -> Tensor:
    """Each image's part [Q] of relative mCE: rises of the error over the clean one, relative to the reference's rises.

    Args:
        hits: as in `corruption_error`.
        clean: [Q] float64, hits on the clean images.
        reference: its errors rise under every corruption.
    """
    rises = [(clean - own) / (reference.corrupted[name] - reference.clean) for name, own in hits.items()]
    return torch.stack(rises).mean(0)


def relative_drop(clean: Tensor, corrupted: Tensor) -> float:
    """The share of the clean accuracy that is lost, in percent. Both are [Q] float64, and some image is right."""
    return 100 * (1 - float(corrupted.sum()) / float(clean.sum()))


def drop_interval(clean: Tensor, corrupted: Tensor) -> tuple[float, float] | None:
    """The 95 % interval of `relative_drop` by the jackknife: an image leaves with all its corrupted versions."""
    before, after = (float(each.sum()) for each in (clean, corrupted))
    without = 1 - (after - corrupted) / (before - clean).clamp(min=1e-12)
    return jackknife(1 - after / before, without.numpy()).interval(lowest=-math.inf)
