"""Clusters of any backbone's features, by k-means or HDBSCAN of scikit-learn.

Letters: N images, K clusters, D width of the features.
"""

import math
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excb.console import plural
from excb.errors import UserError, in_short, require
from excb.exact import exact_products
from excb.neighbours.unit_rows import Rows
from excb.networks.features import in_batches

from .assignment import NOISE, TILE, ClusterAssignment
from .options import ClusterMethod

SEED = 0  # of k-means
WHOLE, BATCH = 20_000, 4096  # images whose k-means uses all at once; of more, images of a step
SMALLEST, WIDTH = 5, 64  # images of HDBSCAN's smallest cluster; principal components that it sees
MOST_DENSE = 50_000  # images for HDBSCAN, whose time grows with their square


@dataclass(frozen=True)
class Partition:
    """Clusters of N images.

    Attributes:
        assignment: of the images: similarities are cosines with a cluster's mean direction.
        centroids: unit rows [K, D] float32.
        settings: how they were made.
    """

    assignment: ClusterAssignment
    centroids: Tensor
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def note(self) -> str | None:
        """For the reader: about noise; None where all images are in a cluster."""
        noise, images = self.assignment.noise, len(self.assignment.first)
        if not noise:
            return None
        return (
            f"{plural(noise, 'image is', 'images are')} noise ({100 * noise / images:.1f} % of {images:,}): HDBSCAN "
            "leaves them in no cluster, and all other figures are of the images in clusters"
        )


def partition(rows: Rows, *, method: ClusterMethod = "kmeans", k: int | None = None) -> Partition:
    """Cluster images by their unit features; all of them are held in memory.

    Args:
        rows: features [N, D].
        method: "kmeans", or "hdbscan", which sees 64 principal components, finds the number itself, and leaves images
            out.
        k: number of clusters of k-means; by default the square root of N, so that a cluster has about K images.

    Raises:
        UserError: there are too few images, or too many for HDBSCAN; k is out of range or given for HDBSCAN; or HDBSCAN
            finds no cluster.
    """
    count = len(rows)
    number = clusters_of(count, method=method, k=k)
    parts = [rows.rows(part.start, part.stop) for part in in_batches(range(count), BATCH)]
    unit = torch.nn.functional.normalize(torch.cat(parts).double(), dim=1).float()
    if number is None:
        return _dense(unit)
    centres = torch.from_numpy(np.asarray(_kmeans(unit.numpy(), number), np.float32))
    centroids = torch.nn.functional.normalize(centres, dim=1)
    rule = "the square root of the number of images" if k is None else "given"
    return Partition(_nearest(unit, centroids), centroids, {"method": method, "k_by": rule, "seed": SEED})


def clusters_of(count: int, *, method: ClusterMethod, k: int | None) -> int | None:
    """The number of clusters that k-means makes of so many images; None of HDBSCAN, which finds it.

    Raises:
        UserError: as `partition`, but for what only the features show.
    """
    require(count >= 2, f"{plural(count, 'image')} cannot be clustered: it takes two at least")
    require(method in ("kmeans", "hdbscan"), f"the method is kmeans or hdbscan, not {method!r}")
    if method == "hdbscan":
        require(k is None, "HDBSCAN finds the number of clusters itself: leave k out, or use kmeans")
        require(count > SMALLEST, f"{plural(count, 'image is', 'images are')} too few for HDBSCAN: use kmeans")
        most = f"{plural(count, 'image is', 'images are')} too many for HDBSCAN (at most {MOST_DENSE:,}): use kmeans"
        require(count <= MOST_DENSE, most)
        return None
    number = max(2, round(math.sqrt(count))) if k is None else k
    require(isinstance(number, Integral), f"k is a number of clusters, not {in_short(k)}")
    require(2 <= number <= count, f"k is {number}: clusters of {plural(count, 'image')} are 2 to {count:,}")
    return number


def _kmeans(unit: np.ndarray, k: int) -> np.ndarray:
    from sklearn.cluster import KMeans, MiniBatchKMeans

    if len(unit) <= WHOLE:
        made = KMeans(k, n_init=1, random_state=SEED).fit(unit)
    else:
        made = MiniBatchKMeans(k, n_init=1, batch_size=BATCH, random_state=SEED).fit(unit)
    centres: np.ndarray = made.cluster_centers_
    return centres


def _nearest(unit: Tensor, centroids: Tensor) -> ClusterAssignment:
    """Every image's nearest centroid, and the next."""
    scores = [_two_best(unit[tile.start : tile.stop], centroids) for tile in _tiles(len(unit), len(centroids))]
    first, second, best, next_best = (torch.cat(each).numpy() for each in zip(*scores, strict=True))
    return ClusterAssignment(len(centroids), first, second, best, best - next_best)


def _tiles(count: int, clusters: int) -> list[range]:
    return in_batches(range(count), max(1, TILE // clusters))


def _two_best(unit: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with exact_products(torch.device("cpu")):
        scores = unit @ centroids.T
    best, first = scores.max(1)
    next_best, second = scores.scatter(1, first[:, None], -torch.inf).max(1)
    return first, second, best, next_best


def _dense(unit: Tensor) -> Partition:
    """HDBSCAN's clusters, each image's own first whatever the cosines; noise is in none."""
    from sklearn.cluster import HDBSCAN
    from sklearn.decomposition import PCA

    count = len(unit)
    seen = PCA(min(WIDTH, *unit.shape), random_state=0).fit_transform(unit.numpy())
    labels = HDBSCAN(min_cluster_size=SMALLEST, copy=True).fit(seen).labels_.astype(np.int64)
    clusters = int(labels.max()) + 1
    if clusters < 1:
        raise UserError("HDBSCAN finds no cluster among these images: use kmeans, which always does")
    require(clusters > 1, "HDBSCAN finds one cluster only among these images: use kmeans")
    first = torch.from_numpy(labels)
    inside = first != NOISE
    sums = torch.zeros(clusters, unit.shape[1]).index_add_(0, first[inside], unit[inside])
    centroids = torch.nn.functional.normalize(sums, dim=1)
    scores = torch.cat([unit[tile.start : tile.stop] @ centroids.T for tile in _tiles(count, clusters)])
    own = torch.where(inside, first, scores.argmax(1))  # of noise the nearest
    similarity = scores.gather(1, own[:, None])[:, 0]
    next_best, runner_up = scores.scatter(1, own[:, None], -torch.inf).max(1)
    second, margin = torch.where(inside, runner_up, own), torch.where(inside, similarity - next_best, 0)
    assignment = ClusterAssignment(clusters, labels, second.numpy(), similarity.numpy(), margin.numpy())
    settings = {"method": "hdbscan", "min_cluster_size": SMALLEST, "principal_components": int(seen.shape[1])}
    return Partition(assignment, centroids, settings)
