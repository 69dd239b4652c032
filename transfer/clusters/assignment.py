"""Hard assignment of images to centroids, and similarities between centroids.

Letters: N images, K clusters, D width of the bottleneck.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from excb.distributed.collectives import gather_objects, rank, world_size
from excb.errors import require
from excb.exact import exact_products
from excb.features.cache import CachedFeatures
from excb.hub.trained_heads import NetworkHeads
from excb.networks.features import in_batches

NOISE = -1  # the number of what HDBSCAN leaves in no cluster, as scikit-learn has it
TILE = 2**24  # similarities held at once: 64 MiB
MOST_ROWS = 1024  # in the projector at once; independent of the user's batch size, as the figures must be


@dataclass(frozen=True)
class ClusterAssignment:
    """Every image's cluster, the argmax of z without B, and the runner-up.

    Noise is in no cluster: its second is the nearest, its similarity that with the nearest, and its margin 0.
    """

    clusters: int  # K
    first: np.ndarray  # [N] int64, the cluster, or `NOISE`; of equal similarities the one with the lowest number
    second: np.ndarray  # [N] int64, the next one
    similarity: np.ndarray  # [N] float32, z of the first
    margin: np.ndarray  # [N] float32, z of the first less that of the second
    balanced: np.ndarray | None = None  # [N] int64, the cluster with the largest z^B, where there is a B

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of images in every cluster, [K] int64."""
        return np.bincount(self.first[self.inside], minlength=self.clusters)

    @cached_property
    def inside(self) -> np.ndarray:
        """Whether an image is in a cluster, [N] bool."""
        inside: np.ndarray = self.first != NOISE
        return inside

    @property
    def noise(self) -> int:
        """Number of images in no cluster."""
        return int((~self.inside).sum())

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Mean over every cluster of the images' values [N], [K] float64; 0 for empty clusters."""
        inside = self.inside
        means: np.ndarray = np.bincount(self.first[inside], weights=values[inside], minlength=self.clusters)
        means /= np.maximum(self.sizes, 1)
        return means

    def with_noise_as_cluster(self) -> Self:
        """The same with noise, where there is any, as one more cluster, the last: for lists of all images."""
        if not self.noise:
            return self
        return replace(self, clusters=self.clusters + 1, first=np.where(self.inside, self.first, self.clusters))


@dataclass(frozen=True)
class CentroidNeighbours:
    """Similarities between centroids."""

    nearest: np.ndarray  # [K, M] int64, every centroid's nearest others, nearest first
    cosines: np.ndarray  # [K, M] float32
    pairs: int  # number of pairs of centroids with a cosine above the threshold
    twins: np.ndarray  # [K] bool, the centroids in any such pair


@torch.no_grad()
def assign_clusters(
    heads: NetworkHeads,
    features: CachedFeatures,
    *,
    balancing: tuple[Tensor, Tensor] | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] = lambda _done: None,
) -> ClusterAssignment:
    """Assign images to the centroid with the largest similarity, one tile of N x K at a time.

    All ranks call this together, share the work and get the whole result.

    Args:
        heads: projector and centroids, in eval mode, on `device`.
        features: of the backbone.
        balancing: B's scale and offset of every cluster, each [K], to assign by z^B as well.
        device: where to compute.
        progress: called with the number of images done after every tile.

    Raises:
        UserError: there is one cluster only.
    """
    device = torch.device(device)
    keys = heads.keys()
    require(len(keys) > 1, "the checkpoint has one cluster only: there is nothing to assign")
    tiles = in_batches(range(len(features)), max(1, min(MOST_ROWS, TILE // len(keys))))
    own_tiles = []
    scale, offset = (each.to(device) for each in balancing) if balancing is not None else (None, None)
    for turn, tile in enumerate(tiles[rank() :: world_size()]):
        with exact_products(device):
            rows = torch.nn.functional.normalize(
                heads.projector(features.rows(tile.start, tile.stop).to(device)).float(), dim=-1
            )
            scores = rows @ keys.T
        after = [] if scale is None or offset is None else [(scores * scale + offset).argmax(1)]
        best, first = scores.max(1)
        scores.scatter_(1, first[:, None], -torch.inf)
        runner_up, second = scores.max(1)
        own_tiles.append([part.cpu().numpy() for part in (first, second, best, best - runner_up, *after)])
        progress(sum(map(len, tiles[turn * world_size() : (turn + 1) * world_size()])))
    by_rank = gather_objects(own_tiles)
    in_order = [by_rank[turn % world_size()][turn // world_size()] for turn in range(len(tiles))]
    return ClusterAssignment(len(keys), *(np.concatenate(parts) for parts in zip(*in_order, strict=True)))


@torch.no_grad()
def neighbours(
    centroids: Tensor, *, most: int, threshold: float, progress: Callable[[int], None] = lambda _done: None
) -> CentroidNeighbours:
    """Find the nearest neighbours of every centroid and count near duplicates, tile by tile.

    Args:
        centroids: unit rows [K, D].
        most: M, number of neighbours; at most K - 1.
        threshold: cosine above which two centroids count as duplicates.
        progress: called with the number of centroids done after every tile.
    """
    clusters = len(centroids)
    most = min(most, clusters - 1)
    numbers = torch.arange(clusters, device=centroids.device)
    nearest, cosines, twins, pairs = [], [], [], 0
    for tile in in_batches(range(clusters), max(1, TILE // clusters)):
        own = numbers[tile.start : tile.stop, None]
        with exact_products(centroids.device):
            similarities = centroids[tile.start : tile.stop] @ centroids.T
        similarities.scatter_(1, own, -torch.inf)
        close = similarities > threshold
        twins.append(close.any(1).cpu())
        pairs += int((close & (numbers > own)).sum())  # each pair once
        top = similarities.topk(most, dim=1)
        nearest.append(top.indices.cpu())
        cosines.append(top.values.cpu())
        progress(len(tile))
    return CentroidNeighbours(torch.cat(nearest).numpy(), torch.cat(cosines).numpy(), pairs, torch.cat(twins).numpy())
