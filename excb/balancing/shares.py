"""Soft shares of a batch by cluster: the step that Sinkhorn-Knopp and MIRA iterate."""

import math

import torch
from torch import Tensor

from excb.balancing.interface import TeacherBatch
from excb.distributed.collectives import logsumexp_over_ranks, world_size
from excb.exact import exact_products

TILE = 2**22  # scores held at once: 16 MiB in float32, and a few times that in temporaries


def log_relative_shares(batch: TeacherBatch, sharpness: float, potential: Tensor, *, normalised: bool = True) -> Tensor:
    """Logarithm of K times the mean over all rows of all processes of softmax_k(sharpness * z + potential), [K].

    It is 0 where a cluster has its equal share. All sums are of logarithms: in float32 a cluster's share would vanish
    at low temperatures. Scores are computed in tiles of rows, again at every call.

    Args:
        batch: similarities z.
        sharpness: an inverse temperature.
        potential: added to each cluster's scores, [K].
        normalised: normalise the rows by the softmax; if False, sum plain exponentials.
    """
    clusters = len(batch.centroids)
    centroids = batch.centroids.to(potential).T
    columns = torch.full_like(potential, -math.inf)
    with exact_products(batch.queries.device):
        for rows in batch.queries.split(max(1, TILE // clusters)):
            scores = (rows.to(potential) @ centroids).mul_(sharpness).add_(potential)
            scores = torch.log_softmax(scores, 1) if normalised else scores
            columns = torch.logaddexp(columns, scores.logsumexp(0))
    return logsumexp_over_ranks(columns) - math.log(len(batch.queries) * world_size() / clusters)
