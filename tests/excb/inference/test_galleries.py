"""Tests of rankings' spread: against a jackknife that leaves images out, and against simulated equals."""

import numpy as np
import pytest
import torch

from excb.inference.galleries import GalleryScores
from excb.transfer.retrieval.effects import GalleryEffects, precision_terms, score_of
from excb.transfer.retrieval.ranking import relevant_ranks


def ranks_of(
    queries: np.ndarray,
    targets: np.ndarray,
    gallery: np.ndarray,
    labels: np.ndarray,
    effects: GalleryEffects | None = None,
) -> list[np.ndarray]:
    """Ranks of relevant images; the gallery is that of the queries where it is the same array."""
    own = range(len(queries)) if gallery is queries else None
    rows, asked = torch.from_numpy(gallery), torch.from_numpy(queries)
    return relevant_ranks(rows, asked, labels, targets, own, device=torch.device("cpu"), effects=effects)


def ranked(queries: np.ndarray, targets: np.ndarray, gallery: np.ndarray, labels: np.ndarray) -> GalleryScores:
    """Average precision of queries, likewise."""
    effects = GalleryEffects(len(gallery), len(queries), [precision_terms])
    ranks = ranks_of(queries, targets, gallery, labels, effects)
    scores = np.array([score_of(precision_terms, own) for own in ranks])
    return GalleryScores(scores, effects.of_mean(np.array([np.nanmean(scores)]))[0], gallery is queries)


def test_its_variance_is_that_of_queries_and_of_the_gallery_less_what_both_share() -> None:
    random = np.random.default_rng(0)
    images, targets = random.standard_normal((60, 4)), random.integers(0, 5, 60)
    spread = ranked(images, targets, images, targets).spread()
    scores = np.array([score_of(precision_terms, own) for own in ranks_of(images, targets, images, targets)])
    without, effects = [], np.zeros((60, 60))
    for image in range(60):
        kept = np.arange(60) != image
        fewer = images[kept]
        without.append(ranked(fewer, targets[kept], fewer, targets[kept]).spread().value)
        there = ranks_of(fewer, targets[kept], fewer, targets[kept])
        effects[kept, image] = scores[kept] - [score_of(precision_terms, own) for own in there]
    separate = 59 / 60 * np.square(np.array(without) - np.mean(without)).sum()
    together = np.square(59 * (effects - effects.mean(0)) / 60**2).sum()
    assert 0.05 < together / separate < 0.5
    assert spread.error == pytest.approx(np.sqrt(separate - together), rel=0.03)


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
