"""Mean and covariance of a teacher's features, which are removed before features are compared."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from excb.exact import exact_products


class Statistics(nn.Module):
    """Unit rows, centred or whitened by a sample of the training images, as unit rows: [..., D] -> [..., D].

    The mean of a public network's features is most of each of them, and says nothing of the image. Whitening is that of
    the principal components (PCA), which leaves rows where it does not rotate them back: cosines are the same.

    Args:
        width: D.
        kind: none, centred or whitened.
        floor: added to every variance before whitening, as a share of their mean, which keeps noise small.
    """

    mean: Tensor
    projection: Tensor | None

    def __init__(self, width: int, kind: Literal["none", "centred", "whitened"], *, floor: float) -> None:
        super().__init__()
        self._kind, self._floor = kind, floor
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("projection", torch.eye(width) if kind == "whitened" else None)

    @torch.no_grad()
    def start(self, rows: Tensor) -> None:
        """Take them from rows [N, D]; those of images that could not be read are NaN, and left out."""
        rows = F.normalize(rows[rows.isfinite().all(1)].double(), dim=1)
        if self._kind == "none" or not len(rows):
            return
        self.mean.copy_(rows.mean(0))
        if self.projection is not None:
            centred = rows - rows.mean(0)
            variances, directions = torch.linalg.eigh(centred.T @ centred / len(rows))
            variances = variances.clamp(min=0)
            self.projection.copy_(directions * (variances + self._floor * variances.mean()).rsqrt())

    @torch.no_grad()
    def forward(self, rows: Tensor) -> Tensor:
        """Apply them; a row of zeros, of an image that the teacher could not read, stays one."""
        known = rows.any(-1, keepdim=True)
        rows = F.normalize(rows, dim=-1)
        if self._kind == "none":
            return rows
        rows = (rows - self.mean.to(rows)) * known
        if self.projection is not None:
            with exact_products(rows.device):
                rows = rows @ self.projection.to(rows)
        return F.normalize(rows, dim=-1)
