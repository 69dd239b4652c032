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
