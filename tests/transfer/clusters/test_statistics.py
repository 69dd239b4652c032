"""Tests of the figures of clusters, against counting by hand and scikit-learn."""

import math
from collections import Counter

import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix

from excb.transfer.clusters.assignment import ClusterAssignment
from excb.transfer.clusters.statistics import LabelCounts, label_figures, sizes_figures


def assigned(clusters: int, first: np.ndarray) -> ClusterAssignment:
    nothing = np.zeros(len(first), np.float32)
    return ClusterAssignment(clusters, first, (first + 1) % clusters, nothing, nothing)


def test_figures_of_sizes() -> None:
    found = sizes_figures(np.array([0, 6, 0, 2, 0, 0, 1, 1]))
    assert found["empty_clusters_unbalanced"] == 4
    assert found["empty_percent_unbalanced"] == 50
    assert found["empty_by_chance_percent"] == pytest.approx(100 * math.exp(-10 / 8), abs=1e-4)
    assert found["largest_images"] == 6
    assert found["largest_relative_size"] == pytest.approx(6 * 8 / 10)
    assert found["smallest_images"] == 1
    entropy = -sum(p * math.log(p) for p in (0.6, 0.2, 0.1, 0.1))
    assert found["effective_clusters"] == pytest.approx(math.exp(entropy), abs=0.01)
    assert sizes_figures(np.full(5, 3))["effective_clusters"] == 5


def test_labels_of_random_clusters_as_scikit_learn_counts_them() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 9, 700)
    first = np.where(random.random(700) < 0.6, labels * 3 % 40, random.integers(0, 40, 700))
    figures = label_figures(assigned(50, first), labels)
    table = contingency_matrix(labels, first)
    assert figures["purity_percent"] == pytest.approx(100 * table.max(axis=0).sum() / 700, abs=1e-4)
    assert figures["nmi_percent"] == pytest.approx(100 * normalized_mutual_info_score(labels, first), abs=1e-4)
    assert figures["purity_by_chance_percent"] < figures["purity_percent"]
    assert figures["nmi_by_chance_percent"] < figures["nmi_percent"]
    assert label_figures(assigned(50, first), labels) == figures

    top = LabelCounts.of(first, labels).top(50, 3)
    for cluster in range(50):
        counts = Counter(labels[first == cluster].tolist())
        assert top[cluster] == sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:3]


def test_one_image_a_cluster_is_pure_by_necessity() -> None:
    figures = label_figures(assigned(100, np.arange(100)), np.arange(100) % 7)
    assert figures["purity_percent"] == figures["purity_by_chance_percent"] == 100
