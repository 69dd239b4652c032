"""DINO's weighted k-NN classifier: the nearest neighbours vote for their classes.

Letters: N bank rows, Q queries, k neighbours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from excb.console import plural
from excb.errors import UserError
from excb.neighbours.nearest import Neighbours

_SCORES = 2**24  # scores in a block of votes at most: 128 MiB
_LABELS = 2**23  # votes of neighbours on labels in a block at most: 64 MiB
_LEAST = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Vote:
    """The classes that the neighbours of every query voted for, on the CPU."""

    top1: Tensor  # [Q] int64, the class of highest score
    top5: Tensor  # [Q, min(5, classes)] int64, classes in order of score; -1 where fewer have a vote
    tied: Tensor  # [Q] bool, whether the two highest scores differ by less than a millionth of the highest


def vote(
    neighbours: Neighbours,
    labels: Tensor,
    *,
    ks: Sequence[int],
    temperatures: Sequence[float],
    classes: int,
) -> dict[tuple[int, float], Vote]:
    """Let the first k neighbours of every query vote for their classes with weight exp(similarity / temperature).

    This is DINO's protocol (facebookresearch/dino, eval_knn.py): temperature 0.07; k of 10, 20, 100 and 200. Classes of
    equal score are ranked by index. Classes without a vote are not ranked: DINO's code ranks them in the arbitrary
    order of an unstable sort.

    Args:
        neighbours: At least max(ks) neighbours of each of Q queries.
        labels: [N] int64, the classes of the bank's rows.
        ks: Numbers of neighbours that vote.
        temperatures: Divisors of the similarities, above 0.
        classes: Number of classes; labels lie in 0 to classes - 1.

    Returns:
        The vote for every (k, temperature), all from one pass, in ascending order of k.

    Raises:
        UserError: A k, a temperature, a label or the number of labels is out of range.
    """
    _check_vote(neighbours, labels, ks, temperatures, classes)
    labels, (Q, searched) = labels.cpu(), neighbours.indices.shape
    tops = {
        (k, T): (torch.empty(Q, min(5, classes), dtype=torch.int64), torch.empty(Q, dtype=torch.bool))
        for k in sorted(set(ks))
        for T in temperatures
    }
    step = max(1, _SCORES // max(classes, searched))
    for start in range(0, Q, step):
        rows = slice(start, start + step)
        voted, similarities = labels[neighbours.indices[rows]], neighbours.similarities[rows]
        for T in temperatures:
            # Above 0 even where exp is not: only classes without a vote score 0.
            weights = _weights(similarities, T).clamp_(min=_LEAST)
            scores = weights.new_zeros(len(weights), classes)
            counted = 0
            for k in sorted(set(ks)):
                scores.scatter_add_(1, voted[:, counted:k], weights[:, counted:k])
                top5, tied = tops[k, T]
                top5[rows], tied[rows] = _best_classes(scores)
                counted = k
    return {key: Vote(top5[:, 0], top5, tied) for key, (top5, tied) in tops.items()}


def vote_on_labels(neighbours: Neighbours, labels: Tensor, *, k: int, temperature: float) -> Tensor:
    """Let the first k neighbours of every query vote for each label on its own, with the same weights.

    Args:
        neighbours: At least k neighbours of each of Q queries.
        labels: [N, C], the sets of labels of the bank's rows: 1 of the label, 0 not; a row of -1 has no vote on it.
        k: Number of neighbours that vote.
        temperature: Divisor of the similarities, above 0.

    Returns:
        [Q, C] float64, the shares of the votes that are for each label; 0 where nobody has a vote.
    """
    parts = []
    for rows in torch.arange(len(neighbours.indices)).split(max(1, _LABELS // (k * labels.shape[1]))):
        weights = _weights(neighbours.similarities[rows, :k], temperature)
        voted = labels[neighbours.indices[rows, :k]]
        every = torch.einsum("qk,qkc->qc", weights, (voted >= 0).double())
        parts.append(torch.einsum("qk,qkc->qc", weights, (voted == 1).double()) / every.where(every > 0, 1.0))
    return torch.cat(parts)


def top_accuracies(vote: Vote, targets: Tensor) -> tuple[float, float]:
    """Return top-1 and top-5 accuracy in percent of a vote on Q queries.

    Args:
        vote: The vote.
        targets: [Q] int64, the true classes.

    Raises:
        UserError: There is not one target per query.
    """
    if targets.shape != vote.top1.shape:
        raise UserError(
            f"{plural(len(vote.top1), 'query', 'queries')}, but targets of shape {list(targets.shape)}: give "
            "one per query"
        )
    targets = targets.cpu()
    in_top5 = (vote.top5 == targets[:, None]).any(1)
    return 100 * (vote.top1 == targets).double().mean().item(), 100 * in_top5.double().mean().item()


def _weights(similarities: Tensor, temperature: float) -> Tensor:
    """exp(similarity / T) relative to the nearest neighbour: the ranks are the same, and it never overflows."""
    return ((similarities - similarities[:, :1]) / temperature).exp()


def _best_classes(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the five best classes of each row in order, -1 for those without a vote, and whether the best two tie."""
    highest = scores.topk(min(2, scores.shape[1])).values
    tied = (highest[:, 0] - highest[:, -1] < 1e-6 * highest[:, 0]) & (scores.shape[1] > 1)
    rest, classes = scores.clone(), []
    for _ in range(min(5, scores.shape[1])):
        best = rest.argmax(1, keepdim=True)  # of equals the first, which topk does not promise
        classes.append(best.where(rest.gather(1, best) > 0, -1))
        rest.scatter_(1, best, -1.0)
    return torch.cat(classes, 1), tied


def _check_vote(
    neighbours: Neighbours, labels: Tensor, ks: Sequence[int], temperatures: Sequence[float], classes: int
) -> None:
    searched = neighbours.indices.shape[1]
    if not ks or min(ks) < 1 or max(ks) > searched:
        raise UserError(f"k is {list(ks)}: every k must lie in 1 to {searched}, the number of neighbours searched for")
    if not temperatures:
        raise UserError("no k-NN temperature is given: choose one or several, such as DINO's 0.07")
    for temperature in temperatures:
        if not 0 < temperature < math.inf:
            raise UserError(f"the k-NN temperature is {temperature}: choose a number above 0, such as DINO's 0.07")
    if len(labels) <= neighbours.indices.max():
        raise UserError(
            f"{plural(len(labels), 'label does', 'labels do')} not cover all rows of the bank: give one label per row"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise UserError(
            f"a label lies outside 0 to {classes - 1}: number the {plural(classes, 'class', 'classes')} from 0"
        )
