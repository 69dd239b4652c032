"""DINO's centering: subtract the mean similarity of each cluster, averaged over batches.

Caron et al., "Emerging Properties in Self-Supervised Vision Transformers" (ICCV 2021): z^B = z - c with Eq. 4,
c <- m c + (1 - m) mean of z, over all rows of the batch on all processes; c starts at 0. As in the authors' code
(facebookresearch/dino, `DINOLoss`), a batch is centred by the c of the batches before it and enters c afterwards. For
DINO's sharpening, every balancer has the teacher's temperature here.
"""

import torch
from torch import Tensor

from excb.balancing.interface import Balancer, TeacherBatch
from excb.distributed.collectives import mean_over_ranks
from excb.exact import exact_products


class Centering(Balancer):
    """Subtract a running mean from the similarities.

    Args:
        clusters: K.
        momentum: m.
    """

    exchanges = 1  # the mean similarity
    center: Tensor

    def __init__(self, clusters: int, momentum: float) -> None:
        super().__init__()
        self._momentum = momentum
        self.register_buffer("center", torch.zeros(clusters))

    def affine(self, batch: TeacherBatch) -> tuple[Tensor, Tensor]:
        """Return scale 1 and offset -c."""
        return torch.ones_like(batch.sizes), -self.center

    def statistic(self, batch: TeacherBatch) -> Tensor:
        """Return the mean similarity of each cluster, [K], as the mean row's similarity: no matrix R x K is needed."""
        with exact_products(batch.queries.device):
            mean_row = batch.queries.to(self.center).mean(0)
            return batch.centroids.to(self.center) @ mean_row

    @torch.no_grad()
    def update(self, statistic: Tensor | None) -> None:
        """Eq. 4."""
        assert statistic is not None
        self.center.lerp_(mean_over_ranks(statistic.clone()), 1 - self._momentum)
