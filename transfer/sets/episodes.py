"""n-shot episodes: n train images of each class, drawn anew in every episode, classify all test images.

Letters: N train images, Q test images, D feature width, C classes.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from excb.inference.estimate import Estimate
from excb.seeding import Purpose, generator


def episodes(
    rows: Tensor,
    labels: np.ndarray,
    queries: Tensor,
    *,
    shots: Sequence[int],
    count: int,
    score: Callable[[np.ndarray], float],
    device: torch.device | str = "cpu",
    progress: Callable[[], None] = lambda: None,
) -> dict[int, np.ndarray]:
    """The figure of every episode.

    A class is the mean of its shots' features of length 1, and a query is of the class of highest cosine. Episode e
    draws the same images whatever the backbone, and those of fewer shots are among those of more.

    Args:
        rows: [N, D] features.
        labels: [N] classes; one with fewer images than shots has all of them in every episode.
        queries: [Q, D] features.
        shots: numbers n of images of each class.
        count: number of episodes.
        score: guessed classes [Q] -> a figure.
        device: where to compute.
        progress: called after each episode.

    Returns:
        Figures [count] by n.
    """
    bank, asked = (F.normalize(each.to(device, torch.float32), dim=1) for each in (rows, queries))
    accuracies = {n: np.empty(count) for n in shots}
    for episode in range(count):
        order = np.lexsort((generator(Purpose.SPLIT, episode, len(labels), 4).random(len(labels)), labels))
        classes, first, sizes = np.unique(labels[order], return_index=True, return_counts=True)
        for n, figures in accuracies.items():
            means = [
                bank[torch.from_numpy(order[at : at + min(n, size)])].mean(0)
                for at, size in zip(first, sizes, strict=True)
            ]
            guesses = (asked @ F.normalize(torch.stack(means), dim=1).T).argmax(1).cpu().numpy()
            figures[episode] = score(classes[guesses])
        progress()
    return accuracies


def episode_interval(figures: np.ndarray) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean over episodes, in percent as they are; None of one episode."""
    return Estimate.of_mean(figures / 100).interval()
