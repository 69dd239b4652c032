"""Which images to label next: those that cover what has no label yet, then those that the model is least sure of.

Coverage is TypiClust (Hacohen et al., ICML 2022): of as many clusters as there will be labels, the largest ones without
a label, and in each the image with the closest neighbours. Uncertainty is the margin of the two likeliest classes
(Scheffer et al., 2001). `benchmarks/photos.py` compares both with random choice.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

Rule = Literal["coverage", "uncertainty", "k-center"]
MOST_CLUSTERS = 500  # as TypiClust has
NEIGHBOURS = 20  # whose mean distance says how typical an image is
COVERED = 10  # labels for each class, from which on uncertainty chooses


@dataclass(frozen=True)
class NextLabels:
    """Images to label next, the most useful first, and the rule that chose them."""

    paths: tuple[str, ...]
    rule: Rule


def next_to_label(
    rows: Tensor,
    labels: np.ndarray,
    count: int,
    *,
    margins: Tensor | None,
    seed: int,
    groups: np.ndarray | None = None,
    rule: Rule | None = None,
) -> tuple[list[int], Rule]:
    """Images to label, the most useful first, and by which rule.

    Args:
        rows: [N, D], features.
        labels: [N] int64; -1 of images without a label.
        count: how many.
        margins: [N], how far each is from another guess (`LabelKind.margins`); None of too few labels for a model.
        seed: of the clusters.
        groups: [N] int64, of images that show the same: one of each is asked for, and none of a group with a label,
            before any other; None if no two do.
        rule: to choose by; by default coverage up to `COVERED` labels a class, then uncertainty.
    """
    known = labels >= 0
    count = min(count, int((~known).sum()))
    if rule is None:
        covered = known.sum() >= COVERED * max(1, len(np.unique(labels[known])))
        rule = "uncertainty" if margins is not None and covered else "coverage"
    if rule == "uncertainty" and margins is None:
        rule = "coverage"
    first, again = _one_of_each(known, np.arange(len(known)) if groups is None else groups)
    shown = np.flatnonzero(known | first)
    wanted, own = min(count, int(first.sum())), known[shown]
    if rule == "uncertainty":
        assert margins is not None
        chosen = _uncertain(own, margins[torch.from_numpy(shown)], wanted)
    else:
        chosen = CHOICES[rule](F.normalize(rows[torch.from_numpy(shown)].float(), dim=1), own, wanted, seed)
    return [*shown[chosen].tolist(), *np.flatnonzero(again)[: count - wanted].tolist()], rule


def _one_of_each(known: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images to ask for, the first of each group without a label; and the others without a label. Both bool [N]."""
    first = np.zeros(len(groups), bool)
    first[np.unique(groups, return_index=True)[1]] = True
    first &= ~np.isin(groups, groups[known])
    return first, ~known & ~first


def _uncertain(known: np.ndarray, margins: Tensor, count: int) -> list[int]:
    """The least margins."""
    order = [index for index in np.argsort(margins.numpy(), kind="stable").tolist() if not known[index]]
    return order[:count]


def _covering(unit: Tensor, known: np.ndarray, count: int, seed: int) -> list[int]:
    """TypiClust: a typical image of each of the largest clusters that have the fewest labels."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    number = min(int(known.sum()) + count, MOST_CLUSTERS, len(unit))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer clusters, where images are equal
        clusters = KMeans(number, n_init=1, random_state=seed).fit_predict(unit.numpy())
    sizes = np.bincount(clusters, minlength=number)
    labels = np.bincount(clusters[known], minlength=number)
    waiting = [_by_typicality(unit, np.flatnonzero(clusters == cluster), known) for cluster in range(number)]
    chosen = list[int]()
    while len(chosen) < count:
        open_ones = [cluster for cluster in range(number) if waiting[cluster]]
        cluster = min(open_ones, key=lambda one: (labels[one], -sizes[one], one))
        chosen.append(waiting[cluster].pop(0))
        labels[cluster] += 1
    return chosen


def _by_typicality(unit: Tensor, members: np.ndarray, known: np.ndarray) -> list[int]:
    """The members of a cluster without a label, those with the closest neighbours first."""
    if not len(members):
        return []
    own = unit[torch.from_numpy(members)]
    distances = torch.cdist(own, own).topk(min(NEIGHBOURS + 1, len(own)), largest=False).values.mean(1)
    order = members[distances.argsort(stable=True).numpy()]
    return [int(index) for index in order if not known[index]]


def _k_center(unit: Tensor, known: np.ndarray, count: int, seed: int) -> list[int]:
    """The image that is farthest from all that are chosen, again and again (Sener and Savarese, ICLR 2018)."""
    if not known.any():
        first = int(np.random.default_rng(seed).integers(len(unit)))
        chosen, nearest = [first], unit @ unit[first]
    else:
        chosen, nearest = [], torch.full((len(unit),), -1.0)
        for part in unit[torch.from_numpy(known)].split(1024):
            nearest = torch.maximum(nearest, (unit @ part.T).max(1).values)
    nearest[torch.from_numpy(known)] = torch.inf
    while len(chosen) < count:
        nearest[chosen] = torch.inf
        farthest = int(nearest.argmin())
        chosen.append(farthest)
        nearest = torch.maximum(nearest, unit @ unit[farthest])
    return chosen[:count]


CHOICES: Mapping[str, Callable[[Tensor, np.ndarray, int, int], list[int]]] = {
    "coverage": _covering,
    "k-center": _k_center,
}
