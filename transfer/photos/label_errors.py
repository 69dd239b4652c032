"""Possible label errors: confident learning on cross-validated probabilities (Northcutt et al., JAIR 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PossibleError:
    """A label that the other labels contradict.

    Attributes:
        path: of the image.
        label: that it has.
        suggestion: the class that it looks like.
        probability: of the label by models that did not see it.
        of_suggestion: of the suggestion.
    """

    path: str
    label: str
    suggestion: str
    probability: float
    of_suggestion: float


def suspicious(probabilities: Tensor, labels: Tensor) -> list[tuple[int, int]]:
    """Images whose label is probably wrong, and the class that each looks like; the most suspicious first.

    A class counts as confidently seen where its probability is at least the mean that its own images have. An image is
    suspicious where a class other than its label is confidently seen, is likelier than the label, and the label is not
    confidently seen.

    Args:
        probabilities: [n, K], of models that did not see the image.
        labels: [n] int64.
    """
    classes = probabilities.shape[1]
    own = probabilities.gather(1, labels[:, None])[:, 0]
    sums = torch.zeros(classes, dtype=own.dtype).scatter_add_(0, labels, own)
    counts = torch.bincount(labels, minlength=classes)
    usual = torch.where(counts > 0, sums / counts.clamp(min=1), torch.inf)
    confident = torch.where(probabilities >= usual, probabilities, -1.0)
    of_label = confident.gather(1, labels[:, None])[:, 0]
    others = confident.scatter(1, labels[:, None], -1.0)
    strongest, which = others.max(1)
    doubted = (strongest > own) & (of_label < 0) & (strongest > 0)
    order = (own - strongest).argsort()
    return [(index, int(which[index])) for index in order.tolist() if bool(doubted[index])]


def suspicious_sets(probabilities: Tensor, sets: Tensor) -> list[tuple[int, int]]:
    """Images and labels of which one probably should not have the other, or should; the most suspicious first.

    Every label is judged by itself, as two classes.

    Args:
        probabilities: [n, K], of models that did not see the image.
        sets: [n, K] int8 of 0 and 1.
    """
    found = []
    for label, (chance, has) in enumerate(zip(probabilities.T, sets.T.long(), strict=True)):
        pair = torch.stack([1 - chance, chance], 1)
        own = pair.gather(1, has[:, None])[:, 0]
        found += [(float(own[index]), index, label) for index, _ in suspicious(pair, has)]
    return [(index, label) for _, index, label in sorted(found)]


def doubted_label(path: str, label: str, chance: Tensor, has: Tensor) -> PossibleError:
    """A label of several that an image has and probably should not, or the other way round."""
    own = float(chance) if bool(has) else 1 - float(chance)
    names = (label, f"not {label}")
    given, other = names if bool(has) else names[::-1]
    return PossibleError(path, given, other, own, 1 - own)
