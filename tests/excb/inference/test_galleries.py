"""Tests of rankings' spread: against a jackknife that leaves images out, and against simulated equals."""

import numpy as np
import pytest
import torch

from excb.inference.galleries import GalleryScores
from excb.transfer.retrieval.effects import GalleryEffects, precision_terms, score_of
from excb.transfer.retrieval.ranking import relevant_ranks


def ranked(queries: np.ndarray, targets: np.ndarray, gallery: np.ndarray, labels: np.ndarray) -> GalleryScores:
    """Average precision of queries; the gallery is theirs where it is the same array."""
    shared = gallery is queries
    effects = GalleryEffects(len(gallery), [precision_terms])
    ranks = relevant_ranks(
        torch.from_numpy(gallery), torch.from_numpy(queries), labels, targets, range(len(queries)) if shared else None,
        device=torch.device("cpu"), effects=effects,
    )  # fmt: skip
    scores = np.array([score_of(precision_terms, own) for own in ranks])
    return GalleryScores(scores, effects.of_mean(np.array([np.nanmean(scores)]))[0], shared)


def test_of_a_shared_gallery_it_is_the_jackknife_over_images() -> None:
    random = np.random.default_rng(0)
    images, targets = random.standard_normal((60, 4)), random.integers(0, 5, 60)
    spread = ranked(images, targets, images, targets).spread()
    without = []
    for image in range(60):
        kept = np.arange(60) != image
        fewer = images[kept]
        without.append(ranked(fewer, targets[kept], fewer, targets[kept]).spread().value)
    error = np.sqrt(59 / 60 * np.square(np.array(without) - np.mean(without)).sum())
    assert spread.error == pytest.approx(error, rel=0.02)


@pytest.mark.parametrize("shared", [True, False])
def test_equal_networks_are_seldom_called_different(shared: bool) -> None:
    random, different, trials = np.random.default_rng(1), 0, 60
    centres = random.standard_normal((8, 16))
    for _ in range(trials):
        targets, labels = random.integers(0, 8, 80), random.integers(0, 8, 80)
        hardness, hard = (0.9 * random.standard_normal((80, 16)) for _ in range(2))
        pair = []
        for _network in range(2):
            queries = centres[targets] + hardness + 0.8 * random.standard_normal((80, 16))
            gallery = queries if shared else centres[labels] + hard + 0.8 * random.standard_normal((80, 16))
            pair.append(ranked(queries, targets, gallery, targets if shared else labels))
        different += pair[1].lead_over(pair[0]).p_value() < 0.05
    assert different / trials <= 0.1


def test_of_few_images_there_is_no_interval() -> None:
    random = np.random.default_rng(0)
    images, targets = random.standard_normal((20, 4)), random.integers(0, 3, 20)
    assert ranked(images, targets, images, targets).spread().interval() is None
