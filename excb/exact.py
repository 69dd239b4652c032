"""Products of float32 that stay float32, for what must not be rounded: scores of clusters, bounds of neighbours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Multiply float32 as float32, whatever the caller allows: neither autocast nor TF32 may round."""
    settings: list[Any] = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]  # type: ignore[attr-defined]
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for setting, precision in zip(settings, before, strict=True):
            setting.fp32_precision = precision


def widened(vectors: Tensor) -> Tensor:
    """The vectors in the precision in which similarities are computed: float32, or float64 as they are."""
    return vectors if vectors.dtype == torch.float64 else vectors.float()


def similarities(rows: Tensor, centroids: Tensor) -> Tensor:
    """x . c_k of unit rows [..., D] and unit centroids [K, D] as one matrix [..., K], at least in float32."""
    with exact_products(rows.device):
        return widened(rows) @ widened(centroids).T
