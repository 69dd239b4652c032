"""Figures of clusters: sizes, agreement with labels, and what chance alone would give."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .assignment import ClusterAssignment

SHOWN = 5  # most frequent labels of a cluster in the atlas


@dataclass(frozen=True)
class LabelCounts:
    """How often each label occurs in each cluster; only pairs that occur are held."""

    cluster: np.ndarray  # [P] int64, in order
    label: np.ndarray  # [P] int64, the most frequent of a cluster first
    images: np.ndarray  # [P] int64

    @classmethod
    def of(cls, clusters: np.ndarray, labels: np.ndarray) -> "LabelCounts":
        """Count the labels [N] int64, from 0, of the clusters [N] int64."""
        classes = int(labels.max()) + 1
        pairs, images = np.unique(clusters.astype(np.int64) * classes + labels, return_counts=True)
        cluster, label = np.divmod(pairs, classes)
        order = np.lexsort((label, -images, cluster))
        return cls(cluster[order], label[order], images[order])

    @property
    def purity(self) -> float:
        """(1 / N) sum_k max_j n_kj, from 0 to 1."""
        majority = np.r_[True, self.cluster[1:] != self.cluster[:-1]]  # each cluster's most frequent label
        return float(self.images[majority].sum() / self.images.sum())

    def top(self, clusters: int, most: int = SHOWN) -> list[list[tuple[int, int]]]:
        """The most frequent labels of each of K clusters, as (label, images)."""
        top: list[list[tuple[int, int]]] = [[] for _ in range(clusters)]
        for cluster, label, images in zip(*(a.tolist() for a in (self.cluster, self.label, self.images)), strict=True):
            if len(top[cluster]) < most:
                top[cluster].append((label, images))
        return top


def balanced_figures(balanced: np.ndarray, clusters: int) -> dict[str, float]:
    """Clusters without an image among assignments [N] after balancing."""
    empty = clusters - len(np.unique(balanced))
    return {"empty_clusters_balanced": empty, "empty_percent_balanced": round(100 * empty / clusters, 4)}


def many_empty(figures: Mapping[str, float]) -> bool:
    """Whether half of the clusters that chance would fill are empty before balancing."""
    chance = figures["empty_by_chance_percent"]
    return figures["empty_percent_unbalanced"] > chance + (100 - chance) / 2


def sizes_figures(sizes: np.ndarray) -> dict[str, float]:
    """Figures of cluster sizes [K] before balancing; docs/clusters.md explains each one."""
    clusters, images = len(sizes), int(sizes.sum())
    shares = sizes[sizes > 0] / images
    empty = int((sizes == 0).sum())
    return {
        "empty_clusters_unbalanced": empty,
        "empty_percent_unbalanced": round(100 * empty / clusters, 4),
        "empty_by_chance_percent": round(100 * float(np.exp(-images / clusters)), 4),
        "largest_relative_size": round(float(sizes.max()) * clusters / images, 4),
        "largest_images": int(sizes.max()),
        "smallest_images": int(sizes[sizes > 0].min()),
        "effective_clusters": round(float(np.exp(-(shares * np.log(shares)).sum())), 2),
    }


def noise_figures(assignment: ClusterAssignment) -> dict[str, float]:
    """Images in no cluster, and their share of all images."""
    noise = assignment.noise
    return {"noise_images": noise, "noise_percent": round(100 * noise / len(assignment.first), 4)}


def label_figures(assignment: ClusterAssignment, labels: np.ndarray) -> dict[str, float]:
    """Purity and normalised mutual information of the images in clusters in percent, and both with shuffled labels.

    Small clusters are pure by necessity; the second pair shows how much of the first is due to that.
    """
    from sklearn.metrics import normalized_mutual_info_score

    figures, inside = {}, assignment.inside
    clusters, labels = assignment.first[inside], labels[inside]
    shuffled = np.random.default_rng(0).permutation(labels)
    for suffix, of_images in (("", labels), ("_by_chance", shuffled)):
        figures[f"purity{suffix}_percent"] = 100 * LabelCounts.of(clusters, of_images).purity
        figures[f"nmi{suffix}_percent"] = 100 * float(normalized_mutual_info_score(of_images, clusters))
    return {name: round(value, 4) for name, value in figures.items()}
